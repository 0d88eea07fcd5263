"""The nodes of a Ray cluster as they are now, and as they came and went in a store's newest run."""

import dataclasses
import math
import time
from pathlib import Path

from dovetail.describe.markets import MarketSource
from dovetail.metrics.attendance import Attendance, fold_attendance
from dovetail.store import Store
from dovetail.verbs.controller import ensure_directory
from dovetail.vocabulary import Cluster
from dovetail.vocabulary.markets import Market


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeStanding:
    """A node as it is now: its devices of a kind, when it will be gone if it was given notice, and the prices of an
    hour of its kind by market.

    >>> NodeStanding(name="n0", kind="cpu", devices=2).leaves_seconds
    inf
    """

    name: str
    kind: str
    devices: int
    leaves_seconds: float = math.inf
    prices: tuple[tuple[Market, float], ...] = ()


def look_at_nodes(*, address: str, store: str | Path, market: str | None = None) -> list[NodeStanding]:
    """The nodes of the Ray cluster at `address`, which must all see the store's directory, with the prices of a
    market."""
    prices = MarketSource(market).ask().at(time.time()) if market else {}
    home = ensure_directory(Path(store))
    from dovetail.engines.ray import connected, find_notices, survey

    with connected(address, programs=[], home=home):
        cluster, numbers = survey(home)
        notices = find_notices()
    leaving = {node: notices[number] for node, number in numbers.items() if number in notices}
    return [_standing(cluster, node.name, leaving, prices) for node in cluster.nodes]


def _standing(cluster: Cluster, node: str, notices: dict[str, float], prices: dict[Market, float]) -> NodeStanding:
    devices = [device for device in cluster.devices if device.node == node]
    kind = devices[0].kind
    return NodeStanding(
        name=node,
        kind=kind,
        devices=len(devices),
        leaves_seconds=notices.get(node, math.inf),
        prices=tuple((market, price) for market, price in sorted(prices.items()) if market.kind == kind),
    )


def past_nodes(store: str | Path) -> list[Attendance]:
    """When the nodes of the newest run in a store joined, were given notice and left; none where it had no Ray."""
    if not (Path(store) / "store.sqlite").exists():
        return []
    with Store(Path(store)) as opened:
        return list(fold_attendance(event for _, event in opened.events()).values())
