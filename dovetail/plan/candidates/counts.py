"""How many devices of a kind are worth offering, and where they lie."""

from collections import Counter

from dovetail.vocabulary import RANKED, Cluster, Kind


def counts(cluster: Cluster, kind: Kind, *, technique: str = "resident") -> tuple[int, ...]:
    """The device counts worth offering to a task on a kind.

    On a CPU these are the powers of two up to the most cores that one node has, and that most itself; a
    resident or spilled model on an accelerator uses exactly one, and one that is split over ranks uses several.

    >>> cpu = Kind(name="cpu", processor="cpu")
    >>> counts(Cluster.uniform(cpu, nodes=2, devices_per_node=6), cpu)
    (1, 2, 4, 6)
    >>> counts(Cluster.uniform(cpu, nodes=2, devices_per_node=6), cpu, technique="replicate")
    (2, 4, 6)
    """
    most = max(devices_per_node(cluster, kind.name).values(), default=0)
    if kind.processor != "cpu" and technique not in RANKED:
        return (1,) if most else ()
    powers = [1 << exponent for exponent in range(most.bit_length())]
    least = 2 if technique in RANKED else 1
    return tuple(count for count in sorted({*powers, most}) if count >= least)


def devices_per_node(cluster: Cluster, kind: str) -> Counter[str]:
    """How many devices of a kind each node has that has any."""
    return Counter(device.node for device in cluster.of_kind(kind))
