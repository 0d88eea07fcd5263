"""Batches are those of torch's `default_collate`, in memory that goes back when another thread drops them."""

import queue
import threading

import numpy
import psutil
import pytest
import torch
from torch.utils.data import default_collate

from dovetail.feeds.collate import collate

ITEMS = {
    "floats": [torch.randn(3, 300, 40) for _ in range(3)],
    "halves": [torch.randn(300, 400).to(torch.bfloat16) for _ in range(3)],
    "transposed": [torch.randn(400, 300).t() for _ in range(3)],
    "nested": [(torch.ones(200, 200, dtype=torch.bool), {"b": numpy.ones((300, 300), dtype="uint8")}, 3)] * 4,
    "mixed": [torch.ones(300, 300, dtype=torch.int64), torch.full((300, 300), 0.5)],
    "small": [torch.ones(2), torch.zeros(2)],
    "trained": [torch.ones(300, 300, requires_grad=True)] * 2,
    "scalars": [1.5, 2.5],
    "whole": [3, -4, 1 << 62],
    "truths": [True, False],
    "truths and numbers": [1, True, 0],
    "numbers and truths": [True, 1, 0],
    "not numbers": [float("nan"), -0.0, float("inf")],
    "of two kinds": [1.5, numpy.float32(2.5)],
    "of two kinds of NumPy": [numpy.float32(1.1), numpy.float64(1.1)],
    "whole and not": [1.5, 2],
    "labels": [(torch.ones(3), 1), (torch.zeros(3), 2)],
    **{
        name: [numpy.dtype(name).type(value) for value in (1, 0, 3)]
        for name in ("float16", "float32", "float64", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16")
    },
}


def same(one, other) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one.nan_to_num(7), other.nan_to_num(7)) and (one.dtype, one.stride()) == (
            other.dtype,
            other.stride(),
        )
    pairs = [(one[key], other[key]) for key in one] if isinstance(one, dict) else zip(one, other, strict=True)
    return type(one) is type(other) and all(same(*pair) for pair in pairs)


@pytest.mark.parametrize("name", ITEMS)
def test_a_batch_is_what_torch_makes(name: str) -> None:
    found, wanted = collate(ITEMS[name]), default_collate(ITEMS[name])
    assert same(found, wanted)
    if isinstance(found, torch.Tensor):
        assert found.requires_grad == wanted.requires_grad


@pytest.mark.parametrize("items", [[1 << 70, 2], [numpy.uint64(1)], [numpy.longdouble(1)], [1, 2.5, "a"]])
def test_what_torch_refuses_is_refused(items) -> None:
    with pytest.raises(Exception):  # noqa: B017
        default_collate(items)
    with pytest.raises(Exception):  # noqa: B017
        collate(items)


def test_what_a_worker_makes_and_a_training_drops_is_given_back() -> None:
    """A hundred batches of 4 MiB; kept, they would be 400."""
    made: queue.Queue[torch.Tensor] = queue.Queue(2)
    items = [numpy.ones(1 << 18, dtype=numpy.float32) for _ in range(4)]
    worker = threading.Thread(target=lambda: [made.put(collate(items)) for _ in range(110)], daemon=True)
    worker.start()
    for _ in range(10):
        made.get()
    before = psutil.Process().memory_info().rss
    for _ in range(100):
        made.get()
    worker.join()
    assert psutil.Process().memory_info().rss - before < 100 << 20
