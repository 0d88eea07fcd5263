"""Promises that a device, a port or a link cannot keep are refused by name; those of plans are kept."""

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.planning import Problem, broken_promises, check, check_promises, derive_options, plan
from dovetail.vocabulary import (
    Cluster,
    Family,
    InvalidSchedule,
    Kind,
    LayerProfile,
    Link,
    Member,
    NoFeasiblePlan,
    Option,
    Placement,
    Profile,
    Schedule,
    TaskId,
)

GPU = Kind(name="h100", processor="cuda")
RATE = 1e6


def layer(name, *, seconds=1.0, parameters=0, activations=0):
    return LayerProfile(
        name=name,
        operation="Linear",
        forward_seconds=seconds / 3,
        backward_seconds=2 * seconds / 3,
        parameter_bytes=parameters,
        activation_bytes=activations,
    )


def profile(*layers, accumulate=1, more_seconds=0.5):
    seconds = accumulate * sum(each.forward_seconds + each.backward_seconds for each in layers)
    return Profile(
        family="f",
        kind="h100",
        count=1,
        step_seconds=seconds + more_seconds,
        peak_bytes=1 << 20,
        parameter_bytes=sum(each.parameter_bytes for each in layers),
        layers=layers,
        edges=tuple(itertools.pairwise(each.name for each in layers)),
        accumulate=accumulate,
    )


def cluster(nodes=2, devices=1, *, rates=None, inside=None):
    """Nodes whose links carry so much by pair; where none is given, all the same."""
    whole = Cluster.uniform(GPU, nodes=nodes, devices_per_node=devices, cores=64)
    pairs = itertools.combinations([node.name for node in whole.nodes], 2)
    links = [
        Link(source=a, target=b, bytes_per_second=(rates or {}).get((a, b), RATE), between_nodes=True) for a, b in pairs
    ]
    links += [Link(source="h100", target="h100", bytes_per_second=inside)] if inside else []
    return dataclasses.replace(whole, links=tuple(links))


def problem(where, known, options=(), *, tasks=1, running=()):
    members = tuple(Member(task=TaskId(f"t{number}"), steps=10) for number in range(tasks))
    return Problem(
        cluster=where,
        families=(Family(name="f", members=members),),
        options=tuple(options),
        profiles=tuple(known),
        running=running,
    )


def placement(seconds, devices, *, technique="replicate", start=0.0, task="t0", rate=0.0, measured=False, **knobs):
    nodes = len({device.partition(":")[0] for device in devices})
    option = Option(
        families=("f",),
        technique=technique,
        kind="h100",
        count=len(devices),
        step_seconds=(seconds,),
        knobs=({"nodes": nodes} if nodes > 1 else {}) | knobs,
        measured=measured,
        link_bytes_per_second=rate,
    )
    return Placement(
        tasks=(TaskId(task),),
        steps=(10,),
        option=option,
        devices=devices,
        start_seconds=start,
        duration_seconds=10 * seconds,
    )


def found(where, known, *placements, running=()):
    return broken_promises(Schedule(placements=placements), problem(where, [known], running=running))


def test_no_step_is_shorter_than_what_each_device_computes():
    known = profile(layer("a", seconds=4.0))
    assert found(cluster(), known, placement(2.0, ("n0:0", "n1:0"))) == []
    (line,) = found(cluster(), known, placement(1.9, ("n0:0", "n1:0")))
    assert line == "'t0' must last as long as device 'n0:0' is busy with its 10 steps, 20.0 s, found 19.0 s."


def test_no_step_is_shorter_than_what_a_node_s_port_passes():
    known = profile(layer("a", seconds=0.1, parameters=6_000_000))
    four = ("n0:0", "n0:1", "n1:0", "n1:1")
    where = cluster(2, 2)
    assert found(where, known, placement(9.0, four)) == []  # 2 · 3/4 of six million bytes
    (line,) = found(where, known, placement(8.9, four))
    assert "the port of node 'n0' is busy" in line or "the link from node" in line


def test_no_step_is_shorter_than_what_the_slowest_link_of_its_nodes_passes():
    known = profile(layer("a", seconds=0.1, parameters=6_000_000))
    where = cluster(3, rates={("n0", "n1"): RATE / 10})
    assert found(where, known, placement(7.0, ("n0:0", "n2:0"))) == []
    (line,) = found(where, known, placement(7.0, ("n0:0", "n1:0")))
    assert line.startswith("'t0' must last as long as the link from node 'n0' to 'n1' is busy with its 10 steps, 10 m")


def test_no_step_is_shorter_than_what_a_device_s_port_passes():
    known = profile(layer("a", seconds=0.1, parameters=6_000_000))
    (line,) = found(cluster(1, 2, inside=RATE), known, placement(5.9, ("n0:0", "n0:1")))
    assert "the port of device 'n0:0' is busy with its 10 steps" in line
    assert found(cluster(1, 2, inside=RATE), known, placement(6.0, ("n0:0", "n0:1"))) == []
    assert found(cluster(1, 2), known, placement(5.9, ("n0:0", "n0:1"))) == [], "nobody measured it"


def test_a_pipeline_passes_on_what_crosses_its_cuts_as_often_as_it_accumulates():
    known = profile(layer("a", activations=1_000_000), layer("b"), accumulate=4)
    ranks = {"technique": "pipeline", "stages": (("a",), ("b",)), "replicas": (1, 1)}
    assert found(cluster(), known, placement(4.5, ("n0:0", "n1:0"), **ranks)) == []
    (line,) = found(cluster(), known, placement(3.9, ("n0:0", "n1:0"), **ranks))
    assert "device 'n0:0' is busy" in line
    wide = profile(layer("a", activations=2_000_000), layer("b"), accumulate=4)
    (line,) = found(cluster(), wide, placement(4.5, ("n0:0", "n1:0"), **ranks))
    assert "is busy with its 10 steps, 1 min 20 s, found 45.0 s" in line


def test_stages_on_one_node_share_its_port():
    """Three stages that each pass on a million bytes, the middle ones on their own nodes or all on one."""
    known = profile(layer("a", activations=1_000_000), layer("b", activations=1_000_000), layer("c"), layer("d"))
    ranks = {"technique": "pipeline", "stages": (("a",), ("b",), ("c", "d"))}
    where = cluster(2, 2, rates={})
    apart = {"stages": (("a",), ("b",), ("c",), ("d",)), "row": (0, 2, 1, 3), "technique": "pipeline"}
    four = ("n0:0", "n0:1", "n1:0", "n1:1")
    (line,) = found(where, known, placement(1.5, four, **apart))  # a and c on n0, b and d on n1: it goes there and back
    assert "the port of node" in line or "the link from node" in line
    assert found(where, known, placement(2.0, four, **apart)) == []
    assert found(cluster(1, 3), known, placement(2.0, ("n0:0", "n0:1", "n0:2"), **ranks)) == []


def test_what_was_measured_and_what_nobody_knows_is_not_refused():
    known = profile(layer("a", seconds=4.0))
    two = ("n0:0", "n1:0")
    assert found(cluster(), known, placement(0.1, two, measured=True)) == []
    assert found(cluster(), known, placement(0.1, two, approximate="gradients-bf16")) == []
    assert found(cluster(), dataclasses.replace(known, family="g"), placement(0.1, two)) == []
    assert found(cluster(), known, placement(0.1, two, technique="pipeline")) == []


def test_links_must_be_as_fast_as_an_option_says_even_where_it_was_measured():
    where = cluster(3, rates={("n0", "n1"): RATE / 10})
    known = profile(layer("a"))
    assert found(where, known, placement(1.0, ("n0:0", "n2:0"), rate=RATE, measured=True)) == []
    (line,) = found(where, known, placement(1.0, ("n0:0", "n1:0"), rate=RATE, measured=True))
    assert line == (
        "'t0' must have 976.6 KiB a second between its nodes, found 97.7 KiB on the link between n0 and n1."
    )


def test_gangs_that_run_together_add_up_at_the_port_of_a_node():
    known = profile(layer("a", seconds=0.1, parameters=6_000_000))
    where = cluster(2, 2)
    one, other = ("n0:0", "n1:0"), ("n0:1", "n1:1")
    first = placement(8.0, one)
    assert found(where, known, first, placement(8.0, other, task="t1", start=80.0)) == []
    lines = found(where, known, first, placement(8.0, other, task="t1", start=79.0))
    assert len(lines) == 2
    assert lines[0].startswith(
        "the port of node 'n0' must not pass more than 976.6 KiB a second, found 1.4 MiB at 79 s"
    )
    assert "'t0', 't1'" in lines[0]
    assert len(found(where, known, placement(8.0, other, task="t1"), running=(first,))) == 2
    slow = [placement(16.0, devices, task=task) for devices, task in ((one, "t0"), (other, "t1"))]
    assert found(where, known, *slow) == []


def test_a_schedule_with_a_broken_promise_is_refused():
    schedule = Schedule(placements=(placement(0.1, ("n0:0", "n1:0")),))
    known = profile(layer("a", seconds=4.0))
    with pytest.raises(InvalidSchedule, match=r"can keep, this one breaks 1; none of it .*\n- 't0' must last"):
        check_promises(schedule, problem(cluster(), [known]))


seconds = st.sampled_from([0.01, 0.3, 1.0, 2.5])
sizes = st.sampled_from([0, 1000, 400_000, 3_000_000])


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """A model that can be copied and cut, on nodes whose links differ."""
    nodes, devices = draw(st.sampled_from([(1, 2), (1, 4), (2, 1), (2, 2), (3, 1), (4, 1), (3, 2)]))
    names = [f"n{number}" for number in range(nodes)]
    rates = {pair: draw(st.sampled_from([RATE / 20, RATE, 30 * RATE])) for pair in itertools.combinations(names, 2)}
    where = cluster(nodes, devices, rates=rates, inside=draw(st.sampled_from([None, RATE, 100 * RATE])))
    layers = tuple(
        layer(f"l{number}", seconds=draw(seconds), parameters=draw(sizes), activations=draw(sizes))
        for number in range(draw(st.integers(1, 6)))
    )
    known = profile(*layers, accumulate=draw(st.sampled_from([1, 4, 8])), more_seconds=draw(seconds))
    skips = [(a.name, b.name) for a, b in itertools.combinations(layers, 2)]
    more = draw(st.lists(st.sampled_from(skips), max_size=2)) if skips else []
    known = dataclasses.replace(known, edges=tuple(dict.fromkeys((*known.edges, *more))))
    tasks = draw(st.integers(1, 3))
    options, _ = derive_options([known], where, imagined={"h100"}, members={"f": tasks})
    return problem(where, [known], options, tasks=tasks)


@settings(max_examples=25, deadline=None)
@given(problems(), st.data())
def test_every_plan_is_accepted_and_every_planted_promise_refused(given_problem: Problem, data: st.DataObject) -> None:
    for option in given_problem.options:  # each on its own, whether or not it is the one that plans choose
        try:
            made = plan(dataclasses.replace(given_problem, options=(option,)), work=0.0).schedule
        except NoFeasiblePlan:
            continue
        check(made, given_problem.cluster)
        check_promises(made, given_problem)
        number = data.draw(st.integers(0, len(made.placements) - 1))
        if option.measured or option.technique not in ("replicate", "shard", "pipeline"):
            continue
        short = made.placements[number].duration_seconds * 1e-3
        planted = dataclasses.replace(made.placements[number], duration_seconds=short)
        assert broken_promises(Schedule(placements=(planted,)), given_problem)
    made = plan(given_problem, work=0.0).schedule
    check(made, given_problem.cluster)
    check_promises(made, given_problem)
