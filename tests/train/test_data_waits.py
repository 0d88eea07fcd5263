"""What counts as waiting for data: a thread that waits while its device computes has lost nothing."""

import time

import pytest
import torch

from dovetail.train.data_waits import DataWaits


def test_on_a_cpu_a_wait_is_a_wait() -> None:
    waits = DataWaits(torch.device("cpu"))
    for seconds in (0.5, 0.0, 0.25):
        waits.begin_wait()
        waits.end_wait(seconds)
    assert waits.seconds() == 0.75


@pytest.mark.gpu
def test_a_wait_beside_a_busy_device_is_none() -> None:
    waits = DataWaits(torch.device("cuda"))
    waits.begin_wait()  # nothing was handed over yet, so all of this one is lost
    time.sleep(0.05)
    waits.end_wait(0.05)
    torch.cuda.synchronize()
    lost = waits.seconds()
    assert 0.04 < lost <= 0.05
    torch.cuda._sleep(2_000_000_000)  # about a second of a device's cycles
    waits.begin_wait()
    time.sleep(0.05)
    waits.end_wait(0.05)
    assert waits.seconds() == lost, "the device has not passed it yet"
    torch.cuda.synchronize()
    assert waits.seconds() - lost < 0.001


@pytest.mark.gpu
def test_a_thread_far_ahead_keeps_few_waits() -> None:
    waits = DataWaits(torch.device("cuda"))
    for _ in range(300):
        torch.cuda._sleep(1_000_000)
        waits.begin_wait()
        waits.end_wait(0.001)
    assert len(waits._pending) <= 65
    torch.cuda.synchronize()
    assert waits.seconds() < 0.1
