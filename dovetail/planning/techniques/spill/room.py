"""Where a gang is predicted to run, and how fast things move there. Knows clusters and links; knows no models."""

import dataclasses

from dovetail.planning.streaming.records import StreamingRates
from dovetail.vocabulary import Cluster, Kind, Node

# An AdamW update moves about this many bytes of memory a parameter: weights, gradient and two slots, some of it twice.
_UPDATE_BYTES = 32
# What one core is taken to update where nobody measured it, up to where the host's memory is the limit.
_UPDATES_PER_CORE = 0.1e9


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SpillRoom:
    """Where a gang is predicted to run: one device of a kind on an otherwise empty node, of whose cores it has a share.

    >>> h200 = Kind(name="h200", processor="cuda")
    >>> SpillRoom.of(Cluster.uniform(h200, devices_per_node=2, cores=16), kind=h200).cores
    8
    """

    kind: Kind
    node: Node
    rates: StreamingRates
    cores: int

    @staticmethod
    def of(cluster: Cluster, *, kind: Kind) -> "SpillRoom":
        """A device of the kind on the node with the most memory. Rates that nobody measured are low ones.

        >>> from dovetail.vocabulary import Link
        >>> h200 = Kind(name="h200", processor="cuda", memory_bytes_per_second=3.2e12)
        >>> cluster = dataclasses.replace(Cluster.uniform(h200, cores=16),
        ...                               links=(Link(source="host", target="h200", bytes_per_second=55e9),))
        >>> rates = SpillRoom.of(cluster, kind=h200).rates
        >>> rates.up_bytes_per_second, rates.down_bytes_per_second, rates.device_update_parameters_per_second
        (55000000000.0, 10000000000.0, 100000000000.0)
        """
        nodes = [cluster.node(device.node) for device in cluster.of_kind(kind.name)]
        node = max(nodes, key=lambda node: node.memory_bytes)
        cores = max(1, node.cores // sum(device.node == node.name for device in cluster.devices))
        return SpillRoom(kind=kind, node=node, rates=_rates(cluster, kind, node, cores), cores=cores)


def _rates(cluster: Cluster, kind: Kind, node: Node, cores: int) -> StreamingRates:
    unknown = StreamingRates()
    links = {(link.source, link.target): link.bytes_per_second for link in cluster.links if not link.between_nodes}
    update = node.update_parameters_per_second * cores / max(1, node.cores)
    return StreamingRates(
        up_bytes_per_second=links.get(("host", kind.name)) or unknown.up_bytes_per_second,
        down_bytes_per_second=links.get((kind.name, "host")) or unknown.down_bytes_per_second,
        update_parameters_per_second=update or min(unknown.update_parameters_per_second, _UPDATES_PER_CORE * cores),
        device_update_parameters_per_second=kind.memory_bytes_per_second / _UPDATE_BYTES
        or unknown.device_update_parameters_per_second,
    )
