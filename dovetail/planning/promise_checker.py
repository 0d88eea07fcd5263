"""Whether a schedule promises what some device, port or link cannot keep: `checker` is for room, this is for rates.

Shares no code with the planners, on purpose: it follows every byte from device to device by itself. A device computes
one thing at a time, a port sends and receives at its rate, both at once, and a link is the way between two nodes. What
a gang needs is what the busiest of them is busy with, as if all else came for nothing, so whatever needs longer than
was promised cannot be kept, by whatever order. Gangs that run at the same time add up at the ports of their nodes.

Refuses nothing of which nobody knows better: options that were measured took what they took, links that nobody measured
may carry anything, and steps with an approximation compute and send something else than the profile says.
"""

import dataclasses
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dovetail.planning.problem import Problem
from dovetail.vocabulary import InvalidSchedule, Kind, Option, Placement, Profile, Schedule
from dovetail.vocabulary.units import show_bytes, show_seconds

# Promises are sums of floats, and bytes of microbatches are whole numbers.
TOLERANCE = 1e-6

Sums = defaultdict[str, float]


def _nothing() -> Sums:
    return defaultdict(float)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StageLoad:
    """A stage of a gang where it lies: what one of its devices would compute alone, how many bytes its devices add up
    among them, how many go on to the next stage and, as gradients, come back; and its devices, in the order in which
    they take turns. All of one step, or of whatever else is asked about."""

    devices: tuple[str, ...]
    compute_seconds: float = 0.0
    summed_bytes: float = 0.0
    crossing_bytes: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class GangTraffic:
    """What a gang puts on devices, in seconds, and on ports and links, in bytes: what each device and each node sends
    and receives, and what goes from one node to another."""

    computes: Sums = dataclasses.field(default_factory=_nothing)
    sent: Sums = dataclasses.field(default_factory=_nothing)
    received: Sums = dataclasses.field(default_factory=_nothing)
    crossed: dict[tuple[str, str], float] = dataclasses.field(default_factory=lambda: defaultdict(float))
    nodes_sent: Sums = dataclasses.field(default_factory=_nothing)
    nodes_received: Sums = dataclasses.field(default_factory=_nothing)

    def carry(self, source: str, target: str, size: float, *, node_of: Callable[[str], str]) -> None:
        """So many bytes go from one device to another."""
        self.sent[source] += size
        self.received[target] += size
        here, there = node_of(source), node_of(target)
        if here != there:
            self.nodes_sent[here] += size
            self.nodes_received[there] += size
            self.crossed[here, there] += size


def follow(stages: Sequence[StageLoad], *, node_of: Callable[[str], str]) -> GangTraffic:
    """Where all of it goes. Sums go once around a ring of a stage's devices, those of a node in a row, each of which
    passes on every part but its own, and once more to hand on what they come to.

    >>> found = follow([StageLoad(devices=("a:0", "b:0"), summed_bytes=8)], node_of=lambda device: device[0])
    >>> found.nodes_sent["a"], found.nodes_received["a"], found.crossed["a", "b"]
    (8.0, 8.0, 8.0)
    """
    found = GangTraffic()
    for stage in stages:
        count, ring = len(stage.devices), sorted(stage.devices, key=node_of)
        for device, following in zip(ring, (*ring[1:], ring[0]), strict=True):
            found.computes[device] += stage.compute_seconds / count
            if count > 1:
                found.carry(device, following, 2 * (count - 1) / count * stage.summed_bytes, node_of=node_of)
    for stage, after in itertools.pairwise(stages):
        turns = math.lcm(len(stage.devices), len(after.devices))
        for turn in range(turns):
            source, target = (each.devices[turn % len(each.devices)] for each in (stage, after))
            found.carry(source, target, stage.crossing_bytes / turns, node_of=node_of)
            found.carry(target, source, stage.crossing_bytes / turns, node_of=node_of)
    return found


def check_promises(schedule: Schedule, problem: Problem) -> None:
    """Raise `InvalidSchedule` with every promise that cannot be kept, unless there is none.

    >>> from dovetail.vocabulary import Cluster
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"))
    >>> check_promises(Schedule(placements=()), Problem(cluster=cluster, families=(), options=()))
    """
    found = broken_promises(schedule, problem)
    if found:
        raise InvalidSchedule(
            f"a schedule must promise only what devices, ports and links can keep, this one breaks {len(found)}; none "
            "of it was started. This is a mistake in the planner: please report it.\n"
            + "\n".join(f"- {each}" for each in found)
        )


def broken_promises(schedule: Schedule, problem: Problem) -> list[str]:
    """Every promise that some device, port or link cannot keep; an empty list where all can be kept."""
    judge = _PromiseJudge(problem)
    found = [line for placement in schedule.placements for line in judge.own(placement)]
    return found + list(judge.together((*problem.running, *schedule.placements)))


class _PromiseJudge:
    def __init__(self, problem: Problem) -> None:
        self._cluster = problem.cluster
        self._nodes = {device.name: device.node for device in problem.cluster.devices}
        self._measured_as = {family.name: family.measured_as for family in problem.families}
        self._profiles: dict[tuple[str, str], list[Profile]] = defaultdict(list)
        for profile in problem.profiles:
            if profile.count == 1:
                self._profiles[profile.family, profile.kind].append(profile)

    def own(self, placement: Placement) -> Iterator[str]:
        """What a placement by itself cannot keep."""
        name, option = " and ".join(map(repr, placement.tasks)), placement.option
        least = option.link_bytes_per_second
        for pair in itertools.combinations(self._nodes_of(placement), 2) if least else ():
            if self._link_rate(*pair) < least * (1 - TOLERANCE):
                yield (
                    f"{name} must have {show_bytes(least)} a second between its nodes, found "
                    f"{show_bytes(self._link_rate(*pair))} on the link between {pair[0]} and {pair[1]}."
                )
        needed = None if option.measured else self._needed(placement)
        steps = max(placement.steps, default=0)
        if needed is not None and placement.duration_seconds < needed[1] * steps * (1 - TOLERANCE):
            yield (
                f"{name} must last as long as {needed[0]} is busy with its {steps} steps, "
                f"{show_seconds(needed[1] * steps)}, found {show_seconds(placement.duration_seconds)}."
            )

    def together(self, placements: Sequence[Placement]) -> Iterator[str]:
        """The first moment at which gangs ask more of a node's port than it carries, if any, by node."""
        changes: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
        for placement in placements:
            for node, rate in self._port_rates(placement).items():
                until = placement.end_seconds - min(
                    TOLERANCE * abs(placement.end_seconds), placement.duration_seconds / 2
                )
                name = " and ".join(map(repr, placement.tasks))
                changes[node] += [(placement.start_seconds, rate, name), (until, -rate, name)]
        for node, moments in sorted(changes.items()):
            asked, port = _nothing(), self._cluster.port(node)
            for at_seconds, rate, name in sorted(moments):
                asked[name] += rate
                using = [each for each, passed in asked.items() if passed > TOLERANCE * port]
                if len(using) > 1 and sum(asked.values()) > port * (1 + TOLERANCE):
                    yield (
                        f"the port of node {node!r} must not pass more than {show_bytes(port)} a second, found "
                        f"{show_bytes(sum(asked.values()))} at {at_seconds:g} s for {', '.join(using)}."
                    )
                    break

    def _needed(self, placement: Placement) -> tuple[str, float] | None:
        """What is busiest with a step of a placement, and for how long; None where nobody knows."""
        kind = self._cluster.kind(placement.option.kind)
        needs = [max(self._busy(traffic, kind), key=_duration) for traffic in self._traffic(placement)]
        return min(needs, key=_duration, default=None)

    def _port_rates(self, placement: Placement) -> dict[str, float]:
        """Bytes a second that pass each node's port while a placement keeps its promise; of one that was measured no
        more than the links carry that it asked for."""
        option, found = placement.option, dict[str, float]()
        for traffic in self._traffic(placement) if option.nodes > 1 else ():
            for node in traffic.nodes_sent.keys() | traffic.nodes_received.keys():
                passed = max(traffic.nodes_sent[node], traffic.nodes_received[node]) / option.step_seconds[0]
                rate = min(passed, option.link_bytes_per_second) if option.measured else passed
                found[node] = min(rate, found.get(node, math.inf))
        return found

    def _traffic(self, placement: Placement) -> Iterator[GangTraffic]:
        """What a step of a placement puts on what, by each profile that it may have been foreseen from."""
        option = placement.option
        if len(option.families) > 1 or "approximate" in option.knobs or not self._nodes.keys() >= {*placement.devices}:
            return
        (family,) = option.families
        for profile in self._profiles.get((self._measured_as.get(family, family), option.kind), ()):
            stages = _stages(option, profile, placement.devices)
            if stages is not None:
                yield follow(stages, node_of=self._nodes.__getitem__)

    def _busy(self, traffic: GangTraffic, kind: Kind) -> Iterator[tuple[str, float]]:
        """How long each device, port and link is busy with what is known to pass it."""
        end = "process" if kind.processor == "cpu" else kind.name
        inside = [each for each in self._cluster.links if each.source == each.target == end and not each.between_nodes]
        rate = inside[0].bytes_per_second if inside else math.inf
        for device, seconds in traffic.computes.items():
            yield f"device {device!r}", seconds
            yield f"the port of device {device!r}", max(traffic.sent[device], traffic.received[device]) / rate
        for node in traffic.nodes_sent:
            size = max(traffic.nodes_sent[node], traffic.nodes_received[node])
            yield f"the port of node {node!r}", size / self._cluster.port(node)
        for (source, target), size in traffic.crossed.items():
            if rate := self._link_rate(source, target):
                yield f"the link from node {source!r} to {target!r}", size / rate

    def _link_rate(self, node: str, other: str) -> float:
        link = self._cluster.link(node, other)
        return link.bytes_per_second if link is not None else 0.0

    def _nodes_of(self, placement: Placement) -> list[str]:
        return sorted({self._nodes[device] for device in placement.devices if device in self._nodes})


def _duration(busy: tuple[str, float]) -> float:
    return busy[1]


def _stages(option: Option, profile: Profile, devices: tuple[str, ...]) -> list[StageLoad] | None:
    """What an option does in a step, on which of these devices; None where it is not known what that is."""
    passes = {"replicate": 1.0, "shard": 1.5 * profile.accumulate}.get(option.technique)
    if passes is not None:
        compute = min(_seconds(profile, {layer.name for layer in profile.layers}), profile.step_seconds)
        summed = passes * profile.parameter_bytes
        return [StageLoad(devices=devices, compute_seconds=compute, summed_bytes=summed)]
    return _pipeline_stages(option.knobs, profile, devices) if option.technique == "pipeline" else None


def _pipeline_stages(knobs: Mapping[str, Any], profile: Profile, devices: tuple[str, ...]) -> list[StageLoad] | None:
    named: Sequence[Sequence[str]] = knobs.get("stages", ())
    if (
        not named
        or not profile.layers
        or {name for stage in named for name in stage} != {layer.name for layer in profile.layers}
    ):
        return None
    chunks, copies = int(knobs.get("chunks", 1)), int(knobs.get("copies", 1))
    row: Sequence[int] = knobs.get("row") or range(len(devices))
    widths: Sequence[int] = knobs.get("replicas") or (1,) * (len(named) // chunks)
    ranks = iter([devices[place] for place in row])
    groups = [list(itertools.islice(ranks, width * copies)) for width in widths]
    by_name = {layer.name: layer for layer in profile.layers}
    found, done = list[StageLoad](), set[str]()
    for number, stage in enumerate(named):
        group, width = groups[number % len(groups)], widths[number % len(groups)]
        done |= set(stage)
        alive = {source for source, target in profile.edges if source in done and target not in done}
        found.append(
            StageLoad(
                # Copies of the pipeline take turns, and in each its devices.
                devices=tuple(group[copy * width + turn] for turn in range(width) for copy in range(copies)),
                compute_seconds=_seconds(profile, set(stage)),
                summed_bytes=sum(by_name[name].parameter_bytes for name in stage),
                crossing_bytes=profile.accumulate * sum(by_name[name].activation_bytes for name in alive),
            )
        )
    return found


def _seconds(profile: Profile, names: set[str]) -> float:
    """What these layers compute in a step. Layers that were measured one by one may come to more than a step did."""
    own, whole = (
        profile.accumulate
        * sum(each.forward_seconds + each.backward_seconds for each in profile.layers if each.name in chosen)
        for chosen in (names, {layer.name for layer in profile.layers})
    )
    return own * min(1.0, profile.step_seconds / whole) if whole else 0.0
