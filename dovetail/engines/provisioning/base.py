"""What whoever provides nodes promises: to start one of a market, to stop it, and to say what there is.

A node that was started joins the cluster by itself. It is known again by its number there, where the provisioner knows
that, or by the label `dovetail-node=NAME`.
"""

import abc
import dataclasses
import math

from dovetail.vocabulary.markets import Market

LABEL = "dovetail-node"
"""The label of a node in the cluster that says as what it was started."""
NUMBER = "node-id"
"""The label that says which number the cluster itself has given to a node."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProvidedNode:
    """A node that was started and not stopped: its name, its market, when it will be taken away, if that is
    said, and its number in the cluster, if that is known.

    >>> ProvidedNode(name="a", market=Market(kind="v100", zone="z")).leaves_seconds
    inf
    """

    name: str
    market: Market
    leaves_seconds: float = math.inf
    number: str = ""


class Provisioner(abc.ABC):
    """Provides nodes. Called from one thread at a time; each call answers within a minute or raises `DovetailError`,
    which says what was asked, what was found and what to do."""

    @abc.abstractmethod
    def start(self, name: str, market: Market) -> None:
        """Begin to provide a node under this name, which no other has. Returns before the node has joined."""

    @abc.abstractmethod
    def stop(self, name: str) -> None:
        """Take a node away, at once. One that there is not is no error."""

    @abc.abstractmethod
    def nodes(self) -> list[ProvidedNode]:
        """What was started and has neither been stopped nor taken away."""
