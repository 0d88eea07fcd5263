"""Links between nodes that were measured, kept by the pair of them: who opens the store again need not measure what is
known and fresh. Nodes go by numbers that no other node ever has, which their engine labels them with; names of nodes
are a run's own.
"""

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path

from dovetail.store.database import Store
from dovetail.vocabulary import Cluster, Link, StoreError

# A node's other users come and go with the hours of a day.
FRESH_SECONDS = 24 * 3600.0


def keep_links(store: Store, cluster: Cluster, *, label: str) -> None:
    """Keep the links that were measured between nodes of a cluster, each of which has its number under this label."""
    numbers = {node.name: node.labels[label] for node in cluster.nodes if label in node.labels}
    measured = [
        dataclasses.replace(link, source=numbers[link.source], target=numbers[link.target])
        for link in cluster.links
        if link.measured_seconds and {link.source, link.target} <= numbers.keys()
    ]
    if measured:
        store.add(hardware=[(_key(link.source, link.target), link) for link in measured])


def known_links(home: Path, numbers: Mapping[str, str], *, now: float) -> tuple[Link, ...]:
    """The fresh links between nodes, given by name with their numbers, that the store at `home` has; none where there
    is no store, or none that can be read yet."""
    found: list[Link] = []
    with contextlib.suppress(StoreError), Store(home) as store:
        pairs = [(name, other) for name in numbers for other in numbers if numbers[name] < numbers[other]]
        for name, other in pairs:
            link = store.hardware(_key(numbers[name], numbers[other]), Link)
            if link is not None and 0 <= now - link.measured_seconds < FRESH_SECONDS:
                found.append(dataclasses.replace(link, source=name, target=other))
    return tuple(found)


def _key(number: str, other: str) -> str:
    return f"link {min(number, other)} {max(number, other)}"
