"""The universal law is found again in measurements, though some of them are wrong."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.planning.feeds.scaling import fit_scaling, least_workers, peak_workers
from dovetail.vocabulary.feeds import StageProfile

COUNTS = (1, 2, 3, 4, 6, 8)


def law(workers: int, contention: float, coherency: float) -> float:
    return 100 * workers / (1 + contention * (workers - 1) + coherency * workers * (workers - 1))


@given(st.sampled_from([0.0, 0.1, 0.4, 1.0]), st.sampled_from([0.0, 0.02, 0.1]))
def test_exact_measurements_give_the_constants(contention: float, coherency: float) -> None:
    found = fit_scaling([(workers, law(workers, contention, coherency)) for workers in COUNTS])
    for workers in COUNTS:
        assert law(workers, *found) == pytest.approx(law(workers, contention, coherency), rel=0.04)


@given(
    st.sampled_from([0.0, 0.1, 0.4]),
    st.sampled_from([0.0, 0.02, 0.1]),
    st.integers(1, len(COUNTS) - 1),
    st.sampled_from([0.4, 3.0]),
    st.lists(st.floats(-0.02, 0.02), min_size=len(COUNTS), max_size=len(COUNTS)),
)
@settings(deadline=None)
def test_one_wild_measurement_hardly_moves_them(
    contention: float, coherency: float, wild: int, factor: float, noise: list[float]
) -> None:
    points = [
        (workers, law(workers, contention, coherency) * (1 + off)) for workers, off in zip(COUNTS, noise, strict=True)
    ]
    workers, rate = points[wild]
    points[wild] = workers, rate * factor
    found = fit_scaling(points)
    scale = law(1, *found) / law(1, contention, coherency)
    for workers in (2, 4):
        assert law(workers, *found) / scale == pytest.approx(law(workers, contention, coherency), rel=0.25)


def test_noise_is_not_taken_for_contention() -> None:
    assert fit_scaling([(1, 100.0), (2, 198.0), (4, 396.0)]) == (0.0, 0.0)


def test_too_few_measurements_give_a_straight_line() -> None:
    assert fit_scaling([]) == (0.0, 0.0)
    assert fit_scaling([(4, 80.0)]) == (0.0, 0.0)


@given(st.sampled_from([0.0, 0.3, 1.0, 2.0]), st.sampled_from([0.0, 0.001, 0.05, 0.7]), st.floats(1, 2000))
def test_the_fewest_workers_and_the_peak_are_what_counting_finds(
    contention: float, coherency: float, wanted: float
) -> None:
    profile = StageProfile(name="s", worker="thread", service_seconds=0.01, contention=contention, coherency=coherency)
    rates = {count: profile.rate(count) for count in range(1, 65)}
    assert profile.rate(peak_workers(profile, most=64)) == max(rates.values())
    enough = [count for count, rate in rates.items() if rate >= wanted]
    assert least_workers(profile, wanted, most=64) == (enough[0] if enough else None)
