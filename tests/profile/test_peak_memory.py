import pytest
import torch

from dovetail.profile import peak_memory
from dovetail.profile.peak_memory import PeakMemory

LARGE = 64 << 20


def test_the_peak_outlives_what_made_it():
    peak = PeakMemory(torch.device("cpu"))
    start = peak.bytes()
    bytearray(LARGE)  # no tensor: torch's allocator may have kept room from an earlier test
    if not peak._is_reset:
        pytest.skip("this system does not let a process reset its peak")
    assert peak.bytes() >= start + LARGE // 2


def test_without_permission_what_is_held_now_counts(monkeypatch):
    monkeypatch.setattr(peak_memory, "_reset_resident_peak", lambda: False)
    assert PeakMemory(torch.device("cpu")).bytes() > 0


@pytest.mark.gpu
def test_on_a_device():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    torch.cuda.init()
    peak = PeakMemory(torch.device("cuda"))
    torch.ones(LARGE, dtype=torch.uint8, device="cuda")
    assert peak.bytes() >= LARGE
