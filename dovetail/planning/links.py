"""What links between nodes give, measured or assumed, and what a ring of copies passes over them."""

import itertools
from collections.abc import Iterable, Sequence

from dovetail.vocabulary import Cluster, Link

# For what nobody measured, low on purpose: gigabit Ethernet, and half a millisecond.
NETWORK_BYTES_PER_SECOND, NETWORK_LATENCY_SECONDS = 125e6, 5e-4


def links_between(cluster: Cluster, nodes: Sequence[str]) -> list[Link]:
    """The links between any two of these nodes, as far as they are known.

    >>> from dovetail.vocabulary import Kind
    >>> links_between(Cluster.uniform(Kind(name="cpu", processor="cpu"), nodes=2), ["n0", "n1"])
    []
    """
    links = (cluster.link(*pair) for pair in itertools.combinations(nodes, 2))
    return [link for link in links if link is not None]


def network_rate(links: Iterable[Link]) -> float:
    """Bytes a second between two nodes: what the slowest link gave that was measured, or a guess.

    >>> network_rate([Link(source="host", target="host", bytes_per_second=1e9, between_nodes=True)]), network_rate([])
    (1000000000.0, 125000000.0)
    """
    return min((link.bytes_per_second for link in links if link.between_nodes), default=NETWORK_BYTES_PER_SECOND)


def network_latency(links: Iterable[Link]) -> float:
    """Seconds before a message is at another node: those of the link that takes longest, or a guess.

    >>> network_latency([])
    0.0005
    """
    return max((link.latency_seconds for link in links if link.between_nodes), default=NETWORK_LATENCY_SECONDS)


def ring_share(replicas: int) -> float:
    """What each of a ring's members passes on of the bytes that they sum, once around to sum and once to hand on.

    >>> ring_share(4)
    1.5
    """
    return 2 * (replicas - 1) / replicas
