import math

import pytest
import torch

from dovetail.profile.devices import measure_kind
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
