"""Which nodes are rented, and what has become of each: asked for, in the cluster, leaving. No clocks, no calls."""

import dataclasses
import math
from collections.abc import Iterable, Mapping

from dovetail.engines.provisioning import ProvidedNode
from dovetail.engines.provisioning.base import LABEL, NUMBER
from dovetail.vocabulary import Cluster
from dovetail.vocabulary.markets import Market


@dataclasses.dataclass(slots=True, kw_only=True)
class RentedNode:
    """A node that is paid for: since when, the node of the cluster that it is (empty: it has not joined), whether it is
    on its way out, and when the provisioner takes it away."""

    name: str
    market: Market
    since_seconds: float
    node: str = ""
    kind: str = ""
    is_leaving: bool = False
    leaves_seconds: float = math.inf
    was_listed: bool = False
    number: str = ""


def match_nodes(rented: Mapping[str, RentedNode], cluster: Cluster) -> None:
    """Note which nodes of the cluster are which of those that are rented."""
    kinds = {device.node: device.kind for device in cluster.devices}
    numbers = {one.number: one for one in rented.values() if one.number}
    for node in cluster.nodes:
        one = rented.get(node.labels.get(LABEL, "")) or numbers.get(node.labels.get(NUMBER, ""))
        if one is not None and node.name in kinds and not one.node:
            one.node, one.kind = node.name, kinds[node.name]


def take_listing(rented: dict[str, RentedNode], listed: Iterable[ProvidedNode], *, now: float) -> list[RentedNode]:
    """Bring what is rented up to date with what the provisioner lists, also what an earlier controller has started;
    gives those that are there no more."""
    there = {each.name: each for each in listed}
    for name, each in there.items():
        one = rented.setdefault(name, RentedNode(name=name, market=each.market, since_seconds=now))
        one.was_listed, one.leaves_seconds, one.number = True, each.leaves_seconds, each.number
    gone = [one for name, one in rented.items() if one.was_listed and name not in there]
    for one in gone:
        del rented[one.name]
    return gone
