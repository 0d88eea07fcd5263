"""Which nodes are rented, and what has become of each: asked for, in the cluster, leaving. No clocks, no calls."""

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping

from dovetail.engines.provisioning import ProvidedNode
from dovetail.engines.provisioning.base import LABEL, NUMBER
from dovetail.vocabulary import Cluster
from dovetail.vocabulary.markets import Market


@dataclasses.dataclass(slots=True, kw_only=True)
class RentedNode:
    """A node that is paid for: since when, the node of the cluster that it is (empty: it has not joined), whether it
    was said that it is late, whether it is on its way out, as what it is listed (None: it was not yet), and when the
    provisioner takes it away."""

    name: str
    market: Market
    since_seconds: float
    node: str = ""
    kind: str = ""
    is_late: bool = False
    is_leaving: bool = False
    listed: Market | None = None
    leaves_seconds: float = math.inf
    number: str = ""

    def joins_seconds(self, *, now: float, within_seconds: float) -> float:
        """How long it takes until it has joined, if it does `within_seconds` of being asked for."""
        return 0.0 if self.node else max(0.0, self.since_seconds + within_seconds - now)

    def fault(self) -> str:
        """In which way it is not what was asked for; empty: it is, as far as is known."""
        if self.node and self.kind != self.market.kind:
            return f"its devices are of kind {self.kind}"
        if self.listed is not None and self.listed != self.market:
            return f"it is listed as {self.listed}"
        return ""


def match_nodes(rented: Mapping[str, RentedNode], cluster: Cluster) -> set[str]:
    """Note which nodes of the cluster are which of those that are rented; gives those that are none."""
    kinds = {device.node: device.kind for device in cluster.devices}
    numbers = {one.number: one for one in rented.values() if one.number}
    strangers = set()
    for node in cluster.nodes:
        one = rented.get(node.labels.get(LABEL, "")) or numbers.get(node.labels.get(NUMBER, ""))
        if one is None:
            strangers.add(node.name)
        elif node.name in kinds and not one.node:
            one.node, one.kind = node.name, kinds[node.name]
    return strangers


def take_listing(
    rented: dict[str, RentedNode], listed: Iterable[ProvidedNode], *, now: float, returned: Collection[str]
) -> list[RentedNode]:
    """Bring what is rented up to date with what the provisioner lists, also what an earlier controller has started, but
    for what was `returned` since; gives those that are there no more."""
    there = {each.name: each for each in listed if each.name not in returned}
    for name, each in there.items():
        one = rented.setdefault(name, RentedNode(name=name, market=each.market, since_seconds=now))
        one.listed, one.leaves_seconds, one.number = each.market, each.leaves_seconds, each.number
    gone = [one for name, one in rented.items() if one.listed is not None and name not in there]
    for one in gone:
        del rented[one.name]
    return gone
