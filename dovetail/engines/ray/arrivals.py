"""Nodes that join a Ray cluster while a run is under way: each is asked what it has and reserved, and its links to
those that are there are measured, without keeping anybody waiting, and then is part of the cluster; or is not used, and
the reason is said.

Nothing here blocks: the engine calls `poll` between two looks at its workers. A node has `JOIN_SECONDS` for all of it.
"""

import contextlib
import dataclasses
import itertools
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dovetail.engines.ray.cluster_survey import begin_look, check_look, described, place_marks, read_look
from dovetail.engines.ray.node_links import LinkMeasurement
from dovetail.vocabulary import Cluster, DovetailError

# A node that is cut off, or has another Ray, never answers: that is to be said within a minute.
JOIN_SECONDS = 50.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JoinedNode:
    """A node that is ready for use: what it is, under its name, Ray's number and address, and its reservation."""

    name: str
    number: str
    address: str
    cluster: Cluster
    group: Any


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RefusedNode:
    """A node that is not used, and why."""

    machine: str
    reason: str


@dataclasses.dataclass(slots=True, kw_only=True)
class _Newcomer:
    node: Mapping[str, Any]
    until: float
    marks: contextlib.ExitStack
    look: Any
    unseen_since: float  # when its look was last found not to be done
    joined: JoinedNode | None = None
    links: LinkMeasurement | None = None


class Arrivals:
    """Brings nodes in that were not there when the run began. `reserve(name, cluster, number)` asks Ray for the devices
    of a node and gives a placement group; `folders` are those that every node must see."""

    def __init__(self, ray: Any, *, folders: Sequence[Path], reserve: Callable[[str, Cluster, str], Any]) -> None:
        self._ray, self._folders, self._reserve = ray, folders, reserve
        self._seen: set[str] = set()
        self._named = 0
        self._names: dict[str, str] = {}
        self._cores: Counter[str] = Counter()
        self._coming: dict[str, _Newcomer] = {}

    def know(self, nodes: Iterable[Mapping[str, Any]], *, names: Mapping[str, str], devices: Mapping[str, int]) -> None:
        """These are in the cluster already: the nodes as Ray gives them, of those that are used the numbers by name,
        and how many devices each of these has, by name."""
        counts = {number: devices.get(name, 0) for name, number in names.items()}
        for node in nodes:
            self._seen.add(node["NodeID"])
            self._cores[node["NodeManagerHostname"]] += counts.get(node["NodeID"], 0)
        self._named, self._names = len(names), dict(names)

    def poll(self, nodes: Iterable[Mapping[str, Any]], *, leaving: Collection[str]) -> list[JoinedNode | RefusedNode]:
        """Which nodes have come to be part of the cluster, or are refused, of those that Ray says there are now; of
        these the ones whose numbers are `leaving` do nothing for others any more."""
        there = {node["NodeID"]: node for node in nodes if node["Alive"]}
        for number in there.keys() - self._seen:
            self._seen.add(number)
            self._begin(there[number])
        found: list[JoinedNode | RefusedNode] = []
        for number, newcomer in list(self._coming.items()):
            if number not in there:
                self._forget(number)  # it has left before it was of use
                continue
            try:
                stay = {name: number for name, number in self._names.items() if number in there.keys() - set(leaving)}
                joined = self._advance(newcomer, stay)
            except (DovetailError, self._ray.exceptions.RayError) as error:
                self._forget(number)
                if newcomer.joined is not None:
                    self._ray.util.remove_placement_group(newcomer.joined.group)
                reason = " ".join(str(error).split())[:600]
                found.append(RefusedNode(machine=newcomer.node["NodeManagerHostname"], reason=reason))
                continue
            if joined is not None:
                self._forget(number)
                self._names[joined.name] = number
                found.append(joined)
        return found

    def _begin(self, node: Mapping[str, Any]) -> None:
        if not (node["Resources"].get("CPU") or node["Resources"].get("GPU")):
            return  # it only leads
        marks = contextlib.ExitStack()
        look = begin_look(node["NodeID"], place_marks(self._folders, marks))
        now = time.monotonic()
        newcomer = _Newcomer(node=node, until=now + JOIN_SECONDS, marks=marks, look=look, unseen_since=now)
        self._coming[node["NodeID"]] = newcomer

    def _forget(self, number: str) -> None:
        newcomer = self._coming.pop(number)
        newcomer.marks.close()
        if newcomer.links is not None:
            newcomer.links.close()

    def _advance(self, newcomer: _Newcomer, stay: Mapping[str, str]) -> JoinedNode | None:
        """Take the next step with a newcomer, if it is time to; who is there, and will `stay`, is given by name."""
        if newcomer.joined is None:
            if self._ray.wait([newcomer.look], timeout=0)[0]:
                joined = newcomer.joined = self._describe(newcomer)
                known = [frozenset(pair) for pair in itertools.combinations(stay, 2)]
                newcomer.links = LinkMeasurement({**stay, joined.name: joined.number}, known=known)
            newcomer.unseen_since = time.monotonic()
        links = newcomer.links.poll() if newcomer.links is not None else None
        is_reserved = newcomer.joined is not None and newcomer.joined.group.wait(0)
        if newcomer.joined is not None and is_reserved and links is not None:
            cluster = dataclasses.replace(newcomer.joined.cluster, links=links)
            return dataclasses.replace(newcomer.joined, cluster=cluster)
        if time.monotonic() > newcomer.until:
            what = "tell what it has" if newcomer.joined is None else "have its devices free for this run"
            what = "reach the other nodes, and be reached" if is_reserved else what
            raise DovetailError(
                f"a node that joins must {what} within {JOIN_SECONDS:.0f} s; it did not. Look whether its ports are "
                f"open to the other nodes, whether it has the same Ray and Python, and at 'ray status'."
            )
        return None

    def _describe(self, newcomer: _Newcomer) -> JoinedNode:
        node, unseen_seconds = newcomer.node, time.monotonic() - newcomer.unseen_since
        found = read_look(self._ray.get(newcomer.look), unseen_seconds=unseen_seconds)
        check_look(node["NodeManagerHostname"], found, self._folders)
        cluster, numbers = described([node], [found], first=self._named, dealt=self._cores)
        (name,) = numbers
        self._named += 1
        return JoinedNode(
            name=name,
            number=node["NodeID"],
            address=node["NodeManagerAddress"],
            cluster=cluster,
            group=self._reserve(name, cluster, node["NodeID"]),
        )
