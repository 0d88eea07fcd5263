"""The nodes of a Ray cluster as they are now, and as they came and went in a store's newest run."""

import dataclasses
import math
import time
from collections.abc import Mapping
from pathlib import Path

from dovetail.describe.markets import MarketSource
from dovetail.metrics.attendance import Attendance, fold_attendance
from dovetail.store import Store
from dovetail.verbs.controller import ensure_directory
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
    from dovetail.engines.ray import connected, leaving_nodes, survey

    with connected(address, programs=[], home=home):
        cluster, _ = survey(home)
        leaving = leaving_nodes()
    kinds = {device.node: device.kind for device in cluster.devices}
    staying = [(kind, sum(device.node == node for device in cluster.devices), math.inf) for node, kind in kinds.items()]
    return [
        NodeStanding(name=f"n{number}", kind=kind, devices=devices, leaves_seconds=leaves, prices=_of(kind, prices))
        for number, (kind, devices, leaves) in enumerate([*staying, *leaving])
    ]


def _of(kind: str, prices: Mapping[Market, float]) -> tuple[tuple[Market, float], ...]:
    return tuple((market, price) for market, price in sorted(prices.items()) if market.kind == kind)


def past_nodes(store: str | Path) -> list[Attendance]:
    """When the nodes of the newest run in a store joined, were given notice and left; none where it had no Ray."""
    if not (Path(store) / "store.sqlite").exists():
        return []
    with Store(Path(store)) as opened:
        return list(fold_attendance(event for _, event in opened.events()).values())
