"""From a profile to a resident option."""

import pytest

from dovetail.planning.techniques.resident import CUDA_HOST_BYTES, option
from dovetail.vocabulary import InvalidRecord, Kind, Profile

CPU = Kind(name="cpu", processor="cpu")
H100 = Kind(name="h100", processor="cuda", memory_bytes=80 << 30)


def profile(**more: object) -> Profile:
    measured = {"family": "f", "kind": "cpu", "count": 2, "step_seconds": 0.5, "peak_bytes": 1000} | more
    return Profile(**measured)  # type: ignore[arg-type]


def test_a_cpu_option_counts_host_bytes_and_a_core_a_thread() -> None:
    made = option(profile(), kind=CPU)
    assert (made.device_bytes, made.host_bytes, made.cores, made.count) == (0, 1000, 2, 2)
    assert (made.families, made.technique, made.measured) == (("f",), "resident", True)


def test_a_cuda_option_counts_device_bytes_and_one_core() -> None:
    made = option(profile(kind="h100", count=1, parameter_bytes=10, optimizer_bytes=20, batch_bytes=3), kind=H100)
    assert (made.device_bytes, made.host_bytes, made.cores) == (1000, CUDA_HOST_BYTES + 33, 1)


@pytest.mark.parametrize(
    ("measured", "step_seconds", "start_seconds"),
    [
        ({}, 0.5, 0.0),
        ({"evaluate_seconds": 10.0, "evaluate_every": 100, "steps_per_epoch": 20}, 0.6, 0.0),
        ({"evaluate_seconds": 10.0, "steps_per_epoch": 20}, 1.0, 0.0),
        ({"evaluate_seconds": 10.0}, 0.5, 10.0),
        ({"build_seconds": 3.0, "save_seconds": 1.0}, 0.5, 4.0),
    ],
)
def test_a_step_pays_its_share_and_a_placement_the_rest(
    measured: dict[str, object], step_seconds: float, start_seconds: float
) -> None:
    made = option(profile(**measured), kind=CPU)
    assert made.step_seconds == (pytest.approx(step_seconds),)
    assert made.start_seconds == pytest.approx(start_seconds)


def test_a_profile_is_read_with_its_own_kind() -> None:
    with pytest.raises(InvalidRecord, match="measured on, 'cpu', got 'h100'"):
        option(profile(), kind=H100)
