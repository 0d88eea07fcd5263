import pytest
import torch

from dovetail.profile.clocks import clock_for, synchronize


def test_marks_are_in_order():
    clock = clock_for(torch.device("cpu"))
    start, end = clock.mark(), clock.mark()
    synchronize(torch.device("cpu"))
    assert clock.seconds(start, end) >= 0


@pytest.mark.gpu
def test_events_time_work():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    clock = clock_for(torch.device("cuda"))
    start = clock.mark()
    torch.randn(1024, 1024, device="cuda").square_()
    assert clock.seconds(start, clock.mark()) > 0
