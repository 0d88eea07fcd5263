import math

import pytest
import torch

from dovetail.profile import devices
from dovetail.profile.devices import measure_kind, measure_links
from dovetail.vocabulary import Kind


def test_rates_of_a_core():
    threads = torch.get_num_threads()
    kind = measure_kind(Kind(name="mine", processor="cpu", price_per_hour=2.0), device=torch.device("cpu"))
    assert (kind.name, kind.price_per_hour) == ("mine", 2.0)
    for rate in (kind.matrix_flops_per_second, kind.memory_bytes_per_second):
        assert math.isfinite(rate)
        assert rate > 0
    assert torch.get_num_threads() == threads


def test_device_and_kind_must_agree():
    with pytest.raises(ValueError, match="processor 'cuda'"):
        measure_kind(Kind(name="h200", processor="cuda"), device=torch.device("cpu"))


@pytest.mark.gpu
def test_rates_of_a_device():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    kind = measure_kind(Kind(name="gpu", processor="cuda"), device=torch.device("cuda"))
    assert kind.matrix_flops_per_second > 0
    assert kind.memory_bytes_per_second > 0


def are_sound(found):
    return all(
        math.isfinite(link.bytes_per_second) and link.bytes_per_second > 0 < link.latency_seconds for link in found
    )


@pytest.mark.process
def test_between_processes():
    found = measure_links(Kind(name="cpu", processor="cpu"), device=torch.device("cpu"))
    assert [(link.source, link.target) for link in found] == [("process", "process")]
    assert are_sound(found)


@pytest.mark.process
def test_a_process_that_ends_is_noticed(monkeypatch):
    monkeypatch.setattr(devices, "_CHILD", "pass")
    with pytest.raises(ConnectionError):
        measure_links(Kind(name="cpu", processor="cpu"), device=torch.device("cpu"))


def test_links_are_of_the_kind_of_the_device():
    with pytest.raises(ValueError, match="processor 'cuda'"):
        measure_links(Kind(name="h200", processor="cuda"), device=torch.device("cpu"))


@pytest.mark.gpu
def test_to_and_from_a_device():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    found = measure_links(Kind(name="gpu", processor="cuda"), device=torch.device("cuda"))
    assert [(link.source, link.target) for link in found] == [("host", "gpu"), ("gpu", "host"), ("process", "process")]
    assert are_sound(found)
