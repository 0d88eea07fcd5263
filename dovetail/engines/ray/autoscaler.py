"""Nodes from Ray's own autoscaler: what is wanted is asked for as resources, and Ray starts and stops nodes by its
configuration.

A node type of the autoscaler is of a market by two custom resources, `kind:KIND` and `market:spot@ZONE` or
`market:on-demand@ZONE`. A node is stopped by asking for one less: Ray takes one away that idles, which is the one that
the engine has emptied and let go of.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.engines.provisioning.base import ProvidedNode, Provisioner
from dovetail.engines.ray.connection import installed
from dovetail.engines.ray.node_monitor import find_notices
from dovetail.vocabulary import DovetailError
from dovetail.vocabulary.markets import Market

_KIND, _MARKET = "kind:", "market:"


class AutoscalerProvisioner(Provisioner):
    """Asks the autoscaler of the Ray cluster to which this process is connected."""

    def __init__(self) -> None:
        self._wanted: dict[str, Market] = {}
        self._numbers: dict[str, str] = {}  # Ray's number of each node that has joined

    def start(self, name: str, market: Market) -> None:
        """Ask for one more node of a market."""
        self._request({**self._wanted, name: market})

    def stop(self, name: str) -> None:
        """Ask for one less."""
        if name in self._wanted:
            self._request({other: market for other, market in self._wanted.items() if other != name})
            self._numbers.pop(name, None)

    def nodes(self) -> list[ProvidedNode]:
        """What was asked for; of those that have joined, with their numbers and notices."""
        with _answering():
            there = {node["NodeID"]: market_of(node["Resources"]) for node in installed().nodes() if node["Alive"]}
            notices = find_notices()
        for name in [name for name, number in self._numbers.items() if number not in there]:
            del self._numbers[name], self._wanted[name]  # taken away
        for number, market in there.items():
            if market is not None and number not in self._numbers.values():
                waiting = [name for name, want in self._wanted.items() if want == market and name not in self._numbers]
                if waiting:
                    self._numbers[waiting[0]] = number
        return [
            ProvidedNode(
                name=name,
                market=market,
                number=self._numbers.get(name, ""),
                leaves_seconds=notices.get(self._numbers.get(name, ""), float("inf")),
            )
            for name, market in self._wanted.items()
        ]

    def _request(self, wanted: dict[str, Market]) -> None:
        """Ask for these nodes, and no others; what Ray does not take is not wanted."""
        from ray.autoscaler.sdk import request_resources

        with _answering():
            request_resources(bundles=[resources_of(market) for market in wanted.values()])
        self._wanted = wanted


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    """What Ray raises, as provisioners say it."""
    ray = installed()
    try:
        yield
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise DovetailError(
            f"the Ray cluster must answer what its autoscaler is asked; found: {error} Look at 'ray status'."
        ) from error


def resources_of(market: Market) -> dict[str, float]:
    """The custom resources of a node of a market.

    >>> resources_of(Market(kind="v100", zone="a"))
    {'kind:v100': 1, 'market:spot@a': 1}
    """
    return {f"{_KIND}{market.kind}": 1, f"{_MARKET}{'spot' if market.spot else 'on-demand'}@{market.zone}": 1}


def market_of(resources: Mapping[str, Any]) -> Market | None:
    """The market of a node with these resources, if they name one.

    >>> str(market_of({"CPU": 2.0, "kind:v100": 1.0, "market:on-demand@a": 1.0}))
    'v100 in a, on demand'
    """
    kind = next((key.removeprefix(_KIND) for key in resources if key.startswith(_KIND)), "")
    market, _, zone = (
        next((key for key in resources if key.startswith(_MARKET)), "").removeprefix(_MARKET).partition("@")
    )
    return Market(kind=kind, zone=zone, spot=market == "spot") if kind and zone else None
