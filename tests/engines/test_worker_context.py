"""What a worker adds to an option's knobs, and how it keeps within a device that a user has limited."""

from pathlib import Path

import pytest
import torch

from dovetail.engines.worker import limit_device_memory
from dovetail.engines.worker_context import WorkerContext, local_knobs
from dovetail.vocabulary import Kind

WHOLE = Kind(name="h200", processor="cuda", memory_bytes=141 << 30)
LIMITED = Kind(name="h200-24GiB", processor="cuda", memory_bytes=24 << 30, limited=True)


def context(kind: Kind) -> WorkerContext:
    return WorkerContext(
        report=lambda event: None,
        stop_reason=lambda: None,
        acknowledged_step=lambda task: 0,
        device=torch.device("cpu"),
        kind=kind,
        threads=1,
        home=Path("home"),
    )


def test_spilling_on_a_limited_device_is_told_how_much_it_may_use():
    assert local_knobs("spill", {}, context(LIMITED))["device_bytes"] == 24 << 30
    assert "device_bytes" not in local_knobs("spill", {}, context(WHOLE))  # it looks how much is free
    assert local_knobs("spill", {"device_bytes": 8 << 30}, context(LIMITED))["device_bytes"] == 8 << 30
    assert local_knobs("resident", {}, context(LIMITED)) == {}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_limited_device_has_no_more_memory_than_it_was_limited_to():
    small = Kind(name="small", processor="cuda", memory_bytes=1 << 30, limited=True)
    limit_device_memory(torch, small)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
    limit_device_memory(torch, Kind(name="all", processor="cuda", memory_bytes=0))
    assert torch.empty(2 << 30, dtype=torch.uint8, device="cuda").numel() == 2 << 30
