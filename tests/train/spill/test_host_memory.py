"""Memory of the host and files that stand in for it."""

import errno
import os
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dovetail.train.spill.host_memory import DiskMemory, HostMemory
from tests.train.spill.towers import CPU


@given(sizes=st.lists(st.integers(1, 100), max_size=8), given=st.lists(st.integers(0, 7)))
def test_the_host_counts_what_is_taken(sizes: list[int], given: list[int]) -> None:
    memory = HostMemory(CPU)
    taken = {number: memory.take(size) for number, size in enumerate(sizes)}
    assert all(not buffer.any() and buffer.nbytes == size for buffer, size in zip(taken.values(), sizes, strict=True))
    for number in given:
        if number in taken:
            memory.give(taken.pop(number))
        assert memory.bytes == sum(buffer.nbytes for buffer in taken.values())
    memory.close()
    assert memory.bytes == 0
    memory.close()


def test_nothing_can_be_taken_many_times() -> None:
    # A frozen segment has no gradients to make room for.
    memory = HostMemory(CPU)
    for buffer in [memory.take(0) for _ in range(3)]:
        memory.give(buffer)
    assert memory.bytes == 0


TENSORS = [
    torch.arange(6.0).view(2, 3),
    torch.randn(5, 7).bfloat16(),
    torch.randn(3, dtype=torch.float64),
    torch.arange(4),
    torch.randn(6, 4).t(),
]


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda tensor: f"{tensor.dtype}")
def test_the_disk_keeps_values(tensor: torch.Tensor, tmp_path: Path) -> None:
    disk = DiskMemory(tmp_path / "made" / "when needed")
    moved = disk.move(tensor)
    assert torch.equal(moved, tensor)
    assert disk.holds(moved)
    assert not disk.holds(tensor)
    moved += 1
    for _ in range(2):
        disk.forget([moved])
        disk.expect([moved, tensor])  # what is not on disk does not mind
    assert torch.equal(moved, tensor + 1)
    assert disk.bytes == tensor.nbytes


def test_files_have_no_names_left(tmp_path: Path) -> None:
    disk = DiskMemory(tmp_path)
    moved = [disk.move(torch.ones(100)) for _ in range(3)]
    assert list(tmp_path.iterdir()) == []
    assert disk.bytes == 1200
    assert len({tensor.data_ptr() for tensor in moved}) == 3


def test_a_full_disk_says_so_when_memory_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    disk = DiskMemory(tmp_path)
    with pytest.raises(OSError, match="no space left") as error:
        disk.move(torch.ones(4))
    assert error.value.errno == errno.ENOSPC
    assert disk.bytes == 0
    assert list(tmp_path.iterdir()) == []


def test_a_real_limit_raises_and_sends_no_signal(tmp_path: Path) -> None:
    disk, before = DiskMemory(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        moved = disk.move(torch.ones(1024))
        with pytest.raises(OSError, match="too large"):
            disk.move(torch.ones(1025))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert torch.equal(moved, torch.ones(1024))
    assert disk.bytes == 4096


def test_a_disk_that_cannot_be_written_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    disk = DiskMemory(tmp_path)
    moved = disk.move(torch.ones(4))
    disk.close()
    disk = DiskMemory(tmp_path)
    moved = disk.move(moved)
    monkeypatch.setattr(os, "fdatasync", broken)
    disk.forget([moved])
    disk.close()
    with pytest.raises(OSError, match="input/output"):
        disk.forget([])


def test_what_is_forgotten_while_it_is_written_is_not_lost(tmp_path: Path) -> None:
    disk = DiskMemory(tmp_path)
    moved = disk.move(torch.zeros(1 << 18))
    for _ in range(50):
        disk.forget([moved])
        moved += 1
    disk.close()
    assert torch.equal(moved, torch.full((1 << 18,), 50.0))
