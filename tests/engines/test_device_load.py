"""A device's load is what it computes, not how long it was held."""

import time

import pytest

from dovetail.engines.device_load import DeviceLoad


def test_a_process_that_waits_does_not_load_its_cores():
    load = DeviceLoad("cpu")
    time.sleep(0.2)
    waited = load.end()
    load = DeviceLoad("cpu")
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    computed = load.end()
    assert waited is not None
    assert computed is not None
    assert waited < 0.1 < 0.2 <= computed


def test_what_was_held_for_a_moment_is_remembered():
    load = DeviceLoad("cpu")
    before = load.held_bytes
    held = bytearray(b"x" * (200 << 20))
    time.sleep(0.6)
    del held
    load.end()
    assert load.held_bytes - before > 150 << 20


def test_without_a_driver_nothing_is_said(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda name: (_ for _ in ()).throw(OSError(name)))
    assert DeviceLoad("cuda").end() is None


@pytest.mark.gpu
def test_an_accelerator_that_computes_is_busy():
    import torch

    one = torch.ones(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    load, until = DeviceLoad("cuda"), time.monotonic() + 2
    while time.monotonic() < until:
        for _ in range(20):
            one @ one
        torch.cuda.synchronize()
    busy = load.end()
    assert busy is not None
    assert 1.0 < busy < 2.5


@pytest.mark.gpu
def test_what_an_accelerator_held_is_remembered():
    import torch

    load = DeviceLoad("cuda")
    held = torch.ones(1 << 28, device="cuda")
    time.sleep(0.6)
    del held
    torch.cuda.empty_cache()
    load.end()
    assert 1 << 30 <= load.held_bytes < 2 << 30
