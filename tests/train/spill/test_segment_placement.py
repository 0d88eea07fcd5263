"""Where segments live changes no value: on the device, on the host, on disk."""

import dataclasses
import errno
import functools
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dovetail.planning.techniques.resident import CUDA_HOST_BYTES
from dovetail.planning.techniques.spill import DoesNotFit, StreamingRates
from dovetail.testing import programs
from dovetail.train import SPILL, Training, checkpoint
from dovetail.train.spill import SpillSession, device_resources
from dovetail.train.spill.host_memory import HostMemory
from dovetail.train.spill.host_updates import part
from dovetail.train.spill.segment_placement import SegmentPlacement
from dovetail.train.spill.segments import cut
from tests.train.spill.towers import (
    CPU,
    Build,
    Tower,
    adamw,
    assert_same,
    assert_trains_as_resident,
    momentum,
    resident,
    run,
    streaming,
    training,
)

# Where weights travel in half, the masters are state beside them, and go to disk with the slots.
BUILDS: dict[str, Build] = {
    "adamw": lambda: training(Tower(8)),
    "adamw pure": lambda: training(Tower(8), precision="bf16-pure"),
    "momentum clipped": lambda: training(Tower(8), optimizer=momentum, clip_norm=0.1),
    "accumulated": lambda: training(Tower(8), accumulate=2, clip_norm=0.1),
}


@functools.cache
def host_bytes(build: str) -> int:
    """More than what travels takes, less than that and all of the state."""
    least, most = (_needed(build, disk_bytes=disk_bytes) for disk_bytes in (1 << 20, 0))
    assert CUDA_HOST_BYTES < least < most
    return (least + most) // 2


def _needed(build: str, *, disk_bytes: int) -> int:
    with pytest.raises(DoesNotFit) as error:
        opened(build, host_bytes=1, disk_bytes=disk_bytes)
    return error.value.needed_bytes


def opened(build: str, **knobs: Any) -> SpillSession:
    with streaming():
        return SPILL.open(
            [programs.fresh(BUILDS[build])], device=CPU, threads=1, knobs={"device_bytes": 4500, "depth": 1} | knobs
        )


def on_disk(build: str, folder: Path, **knobs: Any) -> SpillSession:
    budgets = {"host_bytes": host_bytes(build), "disk_bytes": 1 << 20, "disk_directory": str(folder)}
    return opened(build, **budgets | knobs)


@pytest.mark.parametrize("build", sorted(BUILDS))
def test_state_on_disk_is_trained_as_in_memory(build: str, tmp_path: Path) -> None:
    session = on_disk(build, tmp_path)
    assert len(session.layout.on_disk) >= 3
    assert session.layout.host_bytes <= host_bytes(build)
    assert_trains_as_resident(session, BUILDS[build], steps=6)


def test_after_an_update_state_is_on_disk_as_planned_and_no_file_is_left(tmp_path: Path) -> None:
    session = on_disk("adamw pure", tmp_path)
    session.advance()
    session.drain()
    assert session._residents.placement._disk.bytes == session.layout.disk_bytes > 0
    assert list(tmp_path.iterdir()) == []
    session.close()


def test_new_state_that_belongs_on_disk_never_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All jobs of the first step land before any is done."""
    monkeypatch.setattr(device_resources, "uses_kernel", lambda device: True)
    session = on_disk("adamw pure", tmp_path)
    moved: list[torch.Tensor] = []
    disk = session._residents.placement._disk
    move = disk.move
    disk.move = lambda tensor: moved.append(tensor) or move(tensor)  # type: ignore[method-assign,func-returns-value]
    session.advance()
    session.drain()
    assert moved == []
    assert disk.bytes == session.layout.disk_bytes > 0
    session.close()


def test_how_fast_the_disk_is_is_seen_apart_from_updates_in_memory(tmp_path: Path) -> None:
    session = on_disk("adamw pure", tmp_path)
    session.forget_rates()
    session.advance()
    on_disk_too, only_in_memory = session.rates(), opened("adamw pure").rates()
    session.close()
    default = StreamingRates().disk_bytes_per_second
    assert on_disk_too.disk_bytes_per_second != only_in_memory.disk_bytes_per_second == default
    updates = session._resources.updates
    assert updates._disk_bytes == session.layout.disk_bytes
    streamed = [each for each in session.segments if not each.kept and each.name not in session.layout.on_disk]
    assert updates._updated == sum(entry.master.numel() for each in streamed for entry in each.trainable)


def test_for_how_long_of_a_step_the_host_updates_is_known() -> None:
    session = opened("adamw pure")
    session.advance()
    session.drain()
    session.forget_rates()
    assert session.update_seconds() == 0.0
    session.advance()
    session.advance()
    found, updates = session.update_seconds(), session._resources.updates
    session.close()
    assert found == pytest.approx(updates._busy_seconds / 2)  # of two steps


def test_disk_is_not_taken_again_by_loading(tmp_path: Path) -> None:
    session = on_disk("adamw pure", tmp_path)
    session.advance()
    state = session.state()
    state = dataclasses.replace(state, tensors={name: tensor.clone() for name, tensor in state.tensors.items()})
    for _ in range(2):
        session.load(state)
        session.advance()
        session.drain()
        assert session._residents.placement._disk.bytes == session.layout.disk_bytes
    session.close()


@pytest.mark.parametrize("build", sorted(BUILDS))
def test_what_is_on_disk_is_saved_and_loaded(build: str, tmp_path: Path) -> None:
    expected = run(resident(BUILDS[build]), 6)
    first = on_disk(build, tmp_path / "first")
    losses, state = run(first, 3)
    path, _ = checkpoint.write(tmp_path / "saved", state, task="t", attempt=1)
    first.close()
    second = on_disk(build, tmp_path / "second")
    second.load(checkpoint.read(path))
    more, after = run(second, 3)
    assert losses + more == expected[0]
    assert_same(after, expected[1])
    second.close()


def test_closing_takes_the_weights_off_the_disk(tmp_path: Path) -> None:
    session = on_disk("adamw pure", tmp_path)
    session.advance()
    expected = {name: tensor.clone() for name, tensor in session.state().tensors.items()}
    model, disk = session._training.model, session._residents.placement._disk
    session.close()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, expected[f"model/{name}"])
        assert not disk.holds(parameter)


@pytest.mark.parametrize("disk_bytes", [0, 500])
def test_without_enough_disk_it_is_refused_with_numbers(disk_bytes: int, tmp_path: Path) -> None:
    with pytest.raises(DoesNotFit, match=r"needs at least .* of host memory .* on disk; there are .* of disk") as error:
        on_disk("adamw pure", tmp_path, disk_bytes=disk_bytes)
    assert error.value.free_bytes == host_bytes("adamw pure")
    assert error.value.needed_bytes > error.value.free_bytes
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_travel_in_the_hosts_memory_is_refused_whatever_the_disk(tmp_path: Path) -> None:
    with pytest.raises(DoesNotFit, match="of host memory"):
        on_disk("adamw pure", tmp_path, host_bytes=CUDA_HOST_BYTES + 1000)


def test_a_disk_that_is_full_after_all_passes_its_error_and_leaves_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    before = set(threading.enumerate())
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="no space left"):
        on_disk("adamw pure", tmp_path)
    left = set(threading.enumerate()) - before
    assert not left


# One segment, moved about


def test_moving_about_changes_no_value(tmp_path: Path) -> None:
    model = nn.Linear(8, 8)
    optimizer = adamw(model.parameters())
    (segment,) = cut(model, limit_bytes=1 << 20, fixed_bytes=0, precision="bf16-pure", device=CPU)
    mine, memory = part(optimizer, segment), HostMemory(CPU)
    placement = SegmentPlacement(CPU, memory, disk_directory=str(tmp_path))
    placement.to_host(segment, mine)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    mine.step()
    placement.refresh(segment)
    expected = _values(segment, mine)
    for move in (placement.to_device, placement.to_host, placement.to_disk, placement.to_device, placement.to_host):
        move(segment, mine)
        for name, value in _values(segment, mine).items():
            assert torch.equal(value, expected[name]), (move.__name__, name)
    assert memory.bytes == segment.travel_bytes + segment.gradient_bytes
    placement.release(segment)
    placement.release(segment)
    assert memory.bytes == 0


def test_where_weights_travel_as_they_are_there_is_one_copy_of_them() -> None:
    model = nn.Linear(8, 8)
    (segment,) = cut(model, limit_bytes=1 << 20, fixed_bytes=0, precision="fp32", device=CPU)
    placement = SegmentPlacement(CPU, HostMemory(CPU), disk_directory=None)
    placement.to_host(segment, None)
    assert segment.travel is not None
    assert all(entry.master.data_ptr() == entry.view(segment.travel).data_ptr() for entry in segment.entries)
    assert all(entry.leaf.isnan().all() for entry in segment.entries)
    placement.to_device(segment, None)
    assert all(entry.master.data_ptr() == entry.leaf.data_ptr() for entry in segment.entries)


def _values(segment: Any, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    assert segment.travel is not None
    found = {f"travel {entry.name}": entry.view(segment.travel).clone() for entry in segment.entries}
    for entry in segment.entries:
        found[f"master {entry.name}"] = entry.master.detach().clone()
        found |= {f"{slot} {entry.name}": value.clone() for slot, value in optimizer.state[entry.master].items()}
    return found


# State that was there before


def warm() -> Training:
    """Its optimizer has stepped before training begins, as where a program loads a state of its own."""
    made = training(Tower())
    assert isinstance(made.optimizer, torch.optim.Optimizer)
    for parameter in made.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    made.optimizer.step()
    made.optimizer.zero_grad()
    return made


@pytest.mark.parametrize("build", [warm, lambda: training(Tower(), optimizer=_adagrad)], ids=["stepped", "adagrad"])
@pytest.mark.parametrize("device_bytes", [4000, 1 << 20], ids=["streamed", "kept"])
def test_the_slots_that_an_optimizer_comes_with_are_used(build: Build, device_bytes: int) -> None:
    session = SPILL.open(
        [programs.fresh(build)], device=CPU, threads=1, knobs={"device_bytes": device_bytes, "depth": 1}
    )
    assert_trains_as_resident(session, build)


def _adagrad(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(parameters, initial_accumulator_value=0.5)
