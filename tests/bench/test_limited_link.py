"""The ports of the hop bench: a node's connections share one, nodes have each their own."""

import concurrent.futures
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))

from limited_link import LimitedLink, ask  # noqa: E402

SIZE, RATE = 200_000, 1e6


@pytest.mark.parametrize(
    ("nodes", "ways", "least"),
    [("00", ("put", "put"), 2), ("00", ("get", "get"), 2), ("01", ("put", "put"), 1), ("00", ("put", "get"), 1)],
)
def test_connections_of_a_node_share_its_port_each_way(nodes, ways, least) -> None:
    """Beside others' work anything may take longer, so of what passes side by side a few tries' shortest counts."""
    link = LimitedLink(RATE)
    try:
        link.files["there"] = bytes(SIZE)

        def pass_by(node: str, way: str) -> None:
            ask(way, f"{link.url}/{'there' if way == 'get' else node + way}", bytes(SIZE * (way == "put")), node=node)

        taken = []
        for _ in range(3):
            began = time.monotonic()
            with concurrent.futures.ThreadPoolExecutor(2) as both:
                list(both.map(pass_by, nodes, ways))
            taken.append(time.monotonic() - began)
    finally:
        link.close()
    assert min(taken) >= 0.95 * least * SIZE / RATE
    if least == 1:
        assert min(taken) < 2 * SIZE / RATE
