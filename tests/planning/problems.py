"""Small problems for the planners' tests: a builder for hand-written ones, a strategy for any."""

import dataclasses

from hypothesis import strategies as st

from dovetail.planning.fitting import misfit
from dovetail.planning.problem import Problem
from dovetail.vocabulary import Cluster, Device, Family, Kind, Member, Node, Option, Placement

CPU = Kind(name="cpu", processor="cpu")


def option(count: int = 1, *, seconds: float = 1.0, family: str = "f", kind: str = "cpu", **more: int) -> Option:
    """A resident option of one family, with no bytes and no cores unless given."""
    return Option(
        families=(family,), technique="resident", kind=kind, count=count, step_seconds=(seconds,), **{"cores": 0} | more
    )


def family(name: str = "f", **steps: int) -> Family:
    """A family of tasks by name and steps."""
    return Family(name=name, members=tuple(Member(task=task, steps=count) for task, count in steps.items()))


def placement(
    task: str = "a",
    *,
    of: Option | None = None,
    on: tuple[str, ...] = ("n0:0",),
    start: float = 0.0,
    seconds: float = 5.0,
) -> Placement:
    """A placement of one task; five seconds on the first device unless told otherwise."""
    return Placement(
        tasks=(task,),
        steps=(5,),
        option=option() if of is None else of,
        devices=on,
        start_seconds=start,
        duration_seconds=seconds,
    )


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """One or two nodes of unlike sizes with one to three devices of one or two kinds."""
    kinds = tuple(Kind(name=f"k{number}", processor="cpu") for number in range(draw(st.integers(1, 2))))
    nodes = tuple(
        Node(name=f"n{number}", cores=draw(st.integers(2, 4)), memory_bytes=draw(st.sampled_from([4, 8])))
        for number in range(draw(st.integers(1, 2)))
    )
    devices = tuple(
        Device(
            name=f"d{number}",
            kind=draw(st.sampled_from(kinds)).name,
            node=draw(st.sampled_from(nodes)).name,
            index=number,
        )
        for number in range(draw(st.integers(1, 3)))
    )
    return Cluster(kinds=kinds, nodes=nodes, devices=devices)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """At most four tasks on at most three devices, where every task has an option that fits."""
    cluster = draw(clusters())
    used, families, options = 0, [], []
    for number in range(draw(st.integers(1, 3))):
        members = draw(st.lists(st.integers(1, 30), min_size=1, max_size=max(1, 4 - used - 2 + number)))
        used += len(members)
        families.append(family(f"f{number}", **{f"f{number}-{i}": steps for i, steps in enumerate(members)}))
        options += draw(_options(f"f{number}", cluster))
    running = draw(_running(cluster))
    return Problem(cluster=cluster, families=tuple(families), options=tuple(options), running=running)


@st.composite
def _options(draw: st.DrawFn, name: str, cluster: Cluster) -> list[Option]:
    counts = {kind.name: range(1, cluster.count(kind.name) + 1) for kind in cluster.kinds}
    offered = [(kind, count) for kind, range_ in counts.items() for count in range_]
    chosen = draw(st.lists(st.sampled_from(offered), min_size=1, max_size=4, unique=True))
    drawn = [
        Option(
            families=(name,),
            technique="resident",
            kind=kind,
            count=count,
            step_seconds=(draw(st.sampled_from([0.25, 0.5, 1.0, 1.3, 2.0, 3.7])),),
            start_seconds=draw(st.sampled_from([0.0, 0.0, 1.5])),
            host_bytes=draw(st.integers(0, 5)),
            cores=draw(st.integers(0, 2)),
            knobs={"nodes": 2} if count == 2 and draw(st.booleans()) else {},
        )
        for kind, count in chosen
    ]
    # One that always fits, so that every problem has a plan.
    safe = option(family=name, kind=cluster.devices[0].kind, seconds=2.5)
    return [each for each in drawn if misfit(each, cluster) is None] or [safe]


@st.composite
def _running(draw: st.DrawFn, cluster: Cluster) -> tuple[Placement, ...]:
    busy = draw(st.lists(st.sampled_from(cluster.devices), max_size=2, unique=True))
    return tuple(
        placement(
            f"running-{device.name}",
            of=option(family="running", kind=device.kind, host_bytes=draw(st.integers(0, 2)), cores=1),
            on=(device.name,),
            start=-2.0,
            seconds=2.0 + draw(st.sampled_from([0.5, 4.0, 11.0])),
        )
        for device in busy
    )


def scaled(problem: Problem, factor: float) -> Problem:
    """The same problem with all times multiplied."""

    def scale_option(each: Option) -> Option:
        return dataclasses.replace(
            each,
            step_seconds=tuple(seconds * factor for seconds in each.step_seconds),
            start_seconds=each.start_seconds * factor,
        )

    running = tuple(
        dataclasses.replace(
            each,
            option=scale_option(each.option),
            start_seconds=each.start_seconds * factor,
            duration_seconds=each.duration_seconds * factor,
        )
        for each in problem.running
    )
    return dataclasses.replace(problem, options=tuple(map(scale_option, problem.options)), running=running)
