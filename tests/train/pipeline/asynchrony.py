"""What modes whose weights change under way are held to."""

import itertools

import torch

from dovetail.train import PIPELINE
from dovetail.train.pipeline.pipeline_layout import PipelineLayout
from tests.train.pipeline import towers
from tests.train.pipeline.recurrence import recurrence

STEPS = 20
DELAYS = {
    "stashing": lambda depth, count: lambda s, b: max(0, b - (depth - 1 - s)),
    "vertical_sync": lambda depth, count: lambda s, b: max(0, b - (depth - 1)),
    "2bw": lambda depth, count: lambda s, b: max(0, b // count - 1),
}


def spans_of(depth):
    """The six layers of a tower in stages, as slices and as names."""
    bounds = [6 * s // depth for s in range(depth + 1)]
    pairs = list(itertools.pairwise(bounds))
    return [slice(a, b) for a, b in pairs], [[str(n) for n in range(a, b)] for a, b in pairs]


def expected(timetable, replicas, program, count, steps=STEPS):
    """What the recurrence gives. Where stages are replicated, delays are not in closed form, but in the timetable."""
    torch.set_num_threads(1)  # as in the ranks: more would round otherwise
    layout = PipelineLayout.read({"timetable": timetable, "replicas": replicas}, size=sum(replicas), accumulate=count)
    if max(replicas) == 1:
        version = DELAYS[timetable](len(replicas), count)
    else:
        table = layout.run(steps + 30)
        found = {(a.stage, a.microbatch): a.version for _, _, a in table.actions() if a.operation == "forward"}
        version = lambda s, b: found[s, b]  # noqa: E731
    rounds = [count if timetable == "2bw" else each for each in replicas]
    spans = spans_of(len(replicas))[0]
    return recurrence(program, spans, version=version, rounds=rounds, steps=steps, is_mean=timetable != "2bw")


def opened(ranks, timetable, replicas, program):
    """A session of it."""
    knobs = {"timetable": timetable, "replicas": replicas, "stages": spans_of(len(replicas))[1]}
    return ranks.open(PIPELINE, program, knobs=knobs)


def assert_weights(state, weights):
    """That a state's weights are the newest ones of the recurrence."""
    for made in weights:
        for name, expect in made[-1].items():
            assert torch.equal(state.tensors[f"model/{name}"], expect), name


def assert_recurrence(ranks, timetable, replicas, *, optimizer, count):
    """Twenty steps of it, bit by bit: six epochs, and more rounds than any delay is long."""
    program = towers.of(microbatches=count, optimizer=optimizer, clip_norm=0.5)
    losses, weights = expected(timetable, replicas, program, count)
    session = opened(ranks, timetable, replicas, program)
    found = [float(session.advance()[0].loss) for _ in range(STEPS)]
    assert found == losses
    assert_weights(session.state(), weights)
