"""Kinds of devices that one cannot measure here: what their vendors state, and clusters of them, imagined.

Matrix rates are dense, in half precision with matrix units where the kind has them and in single precision without;
memory and link rates are nominal. What is reached of them is less, by about the same share on each kind, and
predictions use ratios (`planning/options/roofline.py`).
"""

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping

from dovetail.vocabulary import Cluster, Device, InvalidRecord, Kind, Link, Node

DEVICES_PER_NODE = 8
# What clouds put beside a device, about; an imagined node has so much for each of its devices.
CORES_PER_DEVICE = 8
HOST_BYTES_PER_DEVICE = 64 << 30


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A kind's data sheet: rates a second, bytes, and the links of one device to its host and to its neighbours.

    >>> SHEETS["v100"].memory_bytes == 16 << 30
    True
    """

    half_flops: float
    single_flops: float
    memory_rate: float
    memory_bytes: int
    host_rate: float
    neighbour_rate: float


def _sheet(half: float, single: float, rate: float, gibibytes: int, host: float, neighbour: float) -> Sheet:
    return Sheet(
        half_flops=half * 1e12,
        single_flops=single * 1e12,
        memory_rate=rate * 1e9,
        memory_bytes=gibibytes << 30,
        host_rate=host * 1e9,
        neighbour_rate=neighbour * 1e9,
    )


#: TFLOP/s in half and in single precision, GB/s of memory, GiB, GB/s to the host and to a neighbour, one way.
#
# What NVIDIA states of each product, named with its year, as pages that reproduce its data sheets had it in November
# 2026; the matrix rate of the A10 is that of the A40 (149.7) in proportion to cores and clock. Links are stated both
# ways together and halved here, as are matrix rates with sparsity. The host is reached by 16 lanes of PCIe: 16, 32 and
# 64 GB/s one way in generations 3, 4 and 5; so are neighbours of kinds without NVLink. Memory is nominal: a driver
# shows about 1% less.
SHEETS: dict[str, Sheet] = {
    "k80": _sheet(4.37, 4.37, 240, 12, 16, 16),  # Tesla K80, 2014, boosted: one of its two dies; no faster in half
    "p100": _sheet(21.2, 10.6, 732, 16, 16, 80),  # Tesla P100 SXM2, 2016: four links of NVLink 1
    "v100": _sheet(125, 15.7, 900, 16, 16, 150),  # Tesla V100 SXM2, 2017: six links of NVLink 2
    "v100-32": _sheet(125, 15.7, 900, 32, 16, 150),  # Tesla V100 SXM2 32 GB, 2018
    "t4": _sheet(65, 8.1, 320, 16, 16, 16),  # Tesla T4, 2018
    "a10": _sheet(125, 31.2, 600, 24, 32, 32),  # A10, 2021
    "l4": _sheet(121, 30.3, 300, 24, 32, 32),  # L4, 2023: 242 with sparsity
    "l40s": _sheet(366, 91.6, 864, 48, 32, 32),  # L40S, 2023: 733 with sparsity
    "a100": _sheet(312, 19.5, 1555, 40, 32, 300),  # A100 SXM4 40 GB, 2020: twelve links of NVLink 3
    "a100-80": _sheet(312, 19.5, 2039, 80, 32, 300),  # A100 SXM4 80 GB, 2020
    "h100": _sheet(989, 67, 3350, 80, 64, 450),  # H100 SXM5, 2022: 1,979 with sparsity, eighteen links of NVLink 4
    "h200": _sheet(989, 67, 4800, 141, 64, 450),  # H200 SXM5, 2023
    "b200": _sheet(2250, 80, 8000, 180, 64, 900),  # HGX B200, 2024: 4,500 with sparsity, 180 of 192 GB usable
}

_TERM = re.compile(r"(\d+)\s*[x×*]\s*(?:(\d+)\s*[x×*]\s*)?([a-z][a-z0-9_.-]*)", re.IGNORECASE)


def known_kind(name: str) -> Kind:
    """The kind of that name, from its data sheet.

    >>> known_kind("a100").memory_bytes >> 30
    40
    """
    if name not in SHEETS:
        near = difflib.get_close_matches(name, SHEETS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise InvalidRecord(f"a kind must be one that is at hand or one of {sorted(SHEETS)}, got {name!r}{hint}")
    sheet = SHEETS[name]
    return Kind(
        name=name,
        processor="cuda",
        memory_bytes=sheet.memory_bytes,
        matrix_flops_per_second=sheet.half_flops,
        memory_bytes_per_second=sheet.memory_rate,
    )


def parse_cluster(text: str, *, at_hand: Iterable[Kind] = ()) -> Cluster:
    """The cluster that is written so: terms of count x kind, or nodes x count x kind, joined by +.

    Up to eight devices of a term share a node. Kinds `at_hand` are taken as they are, a CPU also by the
    name `cpu`, others from their data sheets.

    >>> cluster = parse_cluster("8xa100+4xv100")
    >>> [(kind.name, count) for kind, count in cluster.counts()], [node.cores for node in cluster.nodes]
    ([('a100', 8), ('v100', 4)], [64, 32])
    >>> len(parse_cluster("2x4xt4").nodes)
    2
    """
    known = {name: kind for kind in at_hand for name in {kind.name, *(["cpu"] if kind.processor == "cpu" else [])}}
    kinds: dict[str, Kind] = {}
    nodes: list[Node] = []
    devices: list[Device] = []
    for term in text.split("+"):
        count, name = _term(term.strip(), text)
        kind = known.get(name) or known_kind(name)
        kinds[kind.name] = kind
        for size in count:
            node = f"n{len(nodes)}"
            cores = size if kind.processor == "cpu" else CORES_PER_DEVICE * size
            nodes.append(Node(name=node, cores=cores, memory_bytes=HOST_BYTES_PER_DEVICE * size))
            devices += [Device(name=f"{node}:{n}", kind=kind.name, node=node, index=n) for n in range(size)]
    return Cluster(kinds=tuple(kinds.values()), nodes=tuple(nodes), devices=tuple(devices), links=_links(kinds))


def with_prices(cluster: Cluster, prices: Mapping[str, float]) -> Cluster:
    """The cluster with the price of an hour of one device of each of these kinds.

    >>> with_prices(parse_cluster("1xt4"), {"t4": 0.35}).kind("t4").price_per_hour
    0.35
    """
    names = [kind.name for kind in cluster.kinds]
    for name, price in prices.items():
        if name not in names or not 0 < price < float("inf"):
            raise InvalidRecord(
                f"a price must be above 0 and for a kind of the cluster, one of {names}; got {price} for {name!r}."
            )
    kinds = (dataclasses.replace(k, price_per_hour=prices.get(k.name, k.price_per_hour)) for k in cluster.kinds)
    return dataclasses.replace(cluster, kinds=tuple(kinds))


def _term(term: str, text: str) -> tuple[list[int], str]:
    """How many devices each node of a term has, and their kind."""
    match = _TERM.fullmatch(term)
    if match is None:
        raise InvalidRecord(f"a cluster must be written as '8xa100+4xv100' or '2x8xh100', got {text!r}.")
    first, second, name = int(match[1]), match[2], match[3].lower()
    sizes = [int(second)] * first if second is not None else _nodes(first)
    if not sum(sizes):
        raise InvalidRecord(f"a cluster must have at least one device of each kind it names, got {text!r}.")
    return sizes, name


def _nodes(count: int) -> list[int]:
    full, rest = divmod(count, DEVICES_PER_NODE)
    return [DEVICES_PER_NODE] * full + ([rest] if rest else [])


def _links(kinds: Iterable[str]) -> tuple[Link, ...]:
    found = []
    for name in kinds:
        if name in SHEETS:
            sheet = SHEETS[name]
            found += [
                Link(source="host", target=name, bytes_per_second=sheet.host_rate),
                Link(source=name, target="host", bytes_per_second=sheet.host_rate),
                Link(source=name, target=name, bytes_per_second=sheet.neighbour_rate),
            ]
    return tuple(found)
