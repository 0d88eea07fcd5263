"""Pipelines on two CPU processes of one thread each: ours beside torch's own 1F1B, and beside one another.

`python bench/pipeline.py [--quick] [--check]`. One pair of processes runs everything, in turn, round after round, so
that what else the machine does falls on all alike; a figure is the median over rounds of seconds per step, a ratio is
of those medians. The same stages, weights and microbatches everywhere; losses of ours and torch's are compared.

- 1F1B: our session beside `torch.distributed.pipelining.Schedule1F1B` with the optimizer's step, on the same stages.
- the partition planned from a profile beside as many layers on each rank, on a model with unlike layers.
- 2BW beside our 1F1B at four microbatches, where 1F1B idles a fifth of the time.
- seconds per step as the planner predicts them for these stages from the resident profile, beside those measured.

Where something else runs, two ranks get less than two cores while the one process that is profiled has its own: the
column `without a core` says for which share of the time ranks could have run and did not. Above a few percent the
figures are the machine's, not the bench's.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
# As the engine has it for its workers. What torch is told of threads does not reach OpenBLAS: without this, a profile
# alone on two cores is a quarter faster than two ranks, one on each, can be.
os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import dataclasses
import functools
import statistics
import tempfile
import time
from typing import Any

import torch
from reporting import Bar, finish
from rich.progress import track
from torch import nn
from torch.distributed import pipelining
from torch.nn import functional as F

from dovetail.planning.pipeline.partition import Fabric
from dovetail.planning.techniques import pipeline as predicting
from dovetail.profile.step_measurement import measure
from dovetail.testing import programs
from dovetail.testing.ranks import Followers
from dovetail.train import PIPELINE, RESIDENT, Training, TrainingSession
from dovetail.train.ranked_session import RankedSession
from dovetail.train.ranks import RankedTechnique, Ranks
from dovetail.vocabulary import Kind, Profile

CPU = torch.device("cpu")
KIND = Kind(name="cpu", processor="cpu")
ROUNDS, STEPS = 5, 4
# Bytes a second from process to process over the loopback interface; a message here takes a percent of a layer's time.
LOOPBACK = 1e9
EVEN = (8,) * 8
UNEVEN = (1, 1, 1, 1, 12, 12, 12, 24)


class Layer(nn.Module):
    """So many matrix products of one width."""

    def __init__(self, width: int, products: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            *(part for _ in range(products) for part in (nn.Linear(width, width, bias=False), nn.Tanh()))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All of them."""
        found: torch.Tensor = x + self.inner(x)
        return found


def tower(*, width: int, rows: int, products: tuple[int, ...], microbatches: int) -> Training:
    """Layers of unlike lengths, so many microbatches a step."""
    model = nn.Sequential(*(Layer(width, count) for count in products))
    batches = [(torch.randn(rows, width), torch.randn(rows, width)) for _ in range(microbatches)]
    return Training(
        model=model,
        batches=batches,
        loss=lambda model, batch: F.mse_loss(model(batch[0]), batch[1]),
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
        accumulate=microbatches,
    )


# torch's own


class Peer(RankedTechnique):
    """The same stages under torch's Schedule1F1B, as a session, so that the same processes run both."""

    name = "peer"
    exactness = "as torch has it"

    def refuse(self, members: Any) -> str | None:
        """Nothing."""
        return None

    def open(self, members: Any, *, device: Any, threads: int, knobs: Any = None) -> "PeerSession":
        """One rank of it."""
        return PeerSession(members[0], device=device, threads=threads, ranks=self.company(), stages=knobs["stages"])


class PeerSession(RankedSession):
    """One rank's stage."""

    def __init__(self, member: Any, *, device: Any, threads: int, ranks: Ranks, stages: Any) -> None:
        super().__init__(member, device=device, threads=threads, ranks=ranks)
        training = member.training
        mine = nn.Sequential(*(training.model[int(name)] for name in stages[ranks.rank]))
        self._optimizer = torch.optim.SGD(mine.parameters(), lr=1e-3)
        stage = pipelining.PipelineStage(mine, ranks.rank, ranks.size, device)
        self._schedule = pipelining.Schedule1F1B(stage, training.accumulate, loss_fn=F.mse_loss)

    def _take_step(self, batches: list[Any]) -> Any:
        inputs, targets = (torch.cat([batch[part] for batch in batches]) for part in (0, 1))
        losses: list[torch.Tensor] = []
        if self._ranks.leads:
            self._schedule.step(inputs)
        else:
            self._schedule.step(target=targets, losses=losses)
        self._optimizer.step()
        self._optimizer.zero_grad()
        # As ours: rank 0 learns the loss of every step.
        mean = torch.stack(losses).mean().detach() if losses else torch.zeros(())
        torch.distributed.broadcast(mean, self._ranks.size - 1)
        return self._report([mean], {})

    def state(self, member: int = 0) -> Any:
        """Not asked for."""
        raise NotImplementedError

    def load(self, state: Any, member: int = 0) -> None:
        """Not asked for."""
        raise NotImplementedError


PEER = Peer()


# What is run


def profiled(build: Any) -> Profile:
    """What one device takes, layer by layer."""
    member = programs.fresh(build)
    with tempfile.TemporaryDirectory() as scratch:
        return measure(
            RESIDENT,
            member.training,
            seed=0,
            device=CPU,
            threads=1,
            kind="cpu",
            count=1,
            family="f",
            build_seconds=0.0,
            scratch=Path(scratch),
            layers=True,
            warmup_steps=1,
            least_steps=3,
        )


def planned(profile: Profile, timetable: str) -> predicting.Prediction:
    """Two stages, from the profile."""
    fabric = Fabric.uniform(sizes=(2,), bytes_per_second=(LOOPBACK,), kind="cpu")
    found = predicting.predict(profile, kind=KIND, fabric=fabric, timetable=timetable, depth=2, width=1)
    assert isinstance(found, predicting.Prediction), found
    return found


def expected(profile: Profile, knobs: dict[str, Any]) -> float:
    """What a step with these stages, of whole modules or of layers, should take."""
    fabric = Fabric.uniform(sizes=(2,), bytes_per_second=(LOOPBACK,), kind="cpu")
    names = [layer.name for layer in profile.layers]
    stages = [[n for n in names if n in stage or _module(n) in stage] for stage in knobs["stages"]]
    found = predicting.foreseen(profile, {**knobs, "stages": stages}, fabric=fabric)
    assert found is not None
    return found.seconds


def _module(layer: str) -> str:
    """The tower's module that a layer is in; its sum is named after it, with a number."""
    return layer.partition("+")[0].partition(".")[0]


@dataclasses.dataclass(frozen=True)
class Timed:
    """Seconds of a step once the pipeline runs, the share of them for which ranks waited for a core, and all losses."""

    seconds: float
    without_a_core: float
    losses: list[float]


def timed(session: TrainingSession, steps: int, *, processes: list[int]) -> Timed:
    """So many steps of two ranks, after two more."""
    losses = [session.advance()[0].loss for _ in range(2)]
    start, before = time.perf_counter(), waited(processes)
    losses += [session.advance()[0].loss for _ in range(steps)]
    seconds = time.perf_counter() - start
    share = (waited(processes) - before) / len(processes) / seconds
    return Timed(seconds / steps, share, [float(loss) for loss in losses])


def waited(processes: list[int]) -> float:
    """Seconds for which main threads of these processes were ready to run and others had the core, as Linux counts."""
    files = [Path(f"/proc/{process}/schedstat") for process in processes]
    return sum(int(file.read_text().split()[1]) for file in files if file.exists()) / 1e9


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a toy size; writes nothing")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    width, rows, rounds, steps = (32, 8, 1, 2) if arguments.quick else (384, 96, ROUNDS, STEPS)
    make = functools.partial(tower, width=width, rows=rows)
    builds = {
        "even": functools.partial(make, products=EVEN, microbatches=8),
        "four": functools.partial(make, products=EVEN, microbatches=4),
        "uneven": functools.partial(make, products=UNEVEN, microbatches=8),
    }
    halves = [[str(n) for n in range(4)], [str(n) for n in range(4, 8)]]
    found: dict[str, list[Timed]] = {}
    expectations: dict[str, list[float]] = {}
    with Followers(size=2, patience_seconds=120.0) as followers:
        processes = [os.getpid(), *followers.processes]
        by_hand = {"timetable": "1f1b", "stages": halves}
        parts: dict[str, tuple[Any, str, dict[str, Any]]] = {
            "even": (PIPELINE, "even", by_hand),
            "even, torch": (PEER, "even", by_hand),
            "uneven": (PIPELINE, "uneven", dict(planned(profiled(builds["uneven"]), "1f1b").option.knobs)),
            "uneven, equal counts": (PIPELINE, "uneven", by_hand),
            "four": (PIPELINE, "four", by_hand),
            "2bw": (PIPELINE, "four", {"timetable": "2bw", "stages": halves}),
        }
        for _ in track(range(rounds), description="rounds"):
            profiles = {name: profiled(build) for name, build in builds.items()}
            for name, (technique, build, knobs) in parts.items():
                session = followers.open(technique, builds[build], knobs=knobs)
                found.setdefault(name, []).append(timed(session, steps, processes=processes))
                if technique is PIPELINE:
                    expectations.setdefault(name, []).append(expected(profiles[build], knobs))
    medians = {name: statistics.median(one.seconds for one in each) for name, each in found.items()}
    predicted = {name: statistics.median(each) for name, each in expectations.items()}
    losses = {name: each[-1].losses for name, each in found.items()}
    rows_ = [
        {
            "what": name,
            "seconds_a_step": medians[name],
            "predicted": predicted.get(name),
            "predicted_over_measured": predicted[name] / medians[name] if name in predicted else None,
            "without_a_core": statistics.median(one.without_a_core for one in found[name]),
            "last_loss": losses[name][-1],
        }
        for name in parts
    ]
    bars = [
        Bar("1F1B, torch's seconds over ours", medians["even, torch"] / medians["even"], least=0.98),
        Bar(
            "planned stages, equal counts' seconds over theirs",
            medians["uneven, equal counts"] / medians["uneven"],
            least=1.2,
        ),
        Bar("2BW at 4 microbatches, 1F1B's seconds over its", medians["four"] / medians["2bw"], least=1.12),
        Bar(
            "losses unlike torch's",
            max(abs(a - b) for a, b in zip(losses["even"], losses["even, torch"], strict=True)),
            most=1e-5,
        ),
        *(
            Bar(f"{name}: predicted over measured, off by", abs(predicted[name] / medians[name] - 1), most=0.15)
            for name in predicted
        ),
    ]
    return finish("pipeline", rows_, bars, check=arguments.check, quick=arguments.quick)


if __name__ == "__main__":
    raise SystemExit(main())
