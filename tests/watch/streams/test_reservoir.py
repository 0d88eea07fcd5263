"""The sample is drawn by weight, and a batch at a time gives what row by row gives."""

import numpy as np
import pytest

from dovetail.watch.streams.reservoir import DecayedReservoir


@pytest.mark.parametrize("batch", [37, 1_000])
def test_newer_rows_are_likelier_by_half_lives(batch):
    ages = []
    for seed in range(60):
        reservoir = DecayedReservoir(capacity=50, width=1, half_life=1_000.0, seed=seed)
        for start in range(0, 10_000, batch):
            reservoir.add(np.arange(start, min(start + batch, 10_000), dtype=float)[:, None])
        ages.extend(9_999 - reservoir.rows()[:, 0])
    # Of a few rows drawn from many, ages are near exponential: half are within one half-life.
    assert np.mean(np.array(ages) < 1_000) == pytest.approx(0.5, abs=0.06)
    assert np.mean(np.array(ages) < 2_000) == pytest.approx(0.75, abs=0.05)


def test_without_decay_every_row_is_as_likely():
    kept = np.zeros(200)
    for seed in range(400):
        reservoir = DecayedReservoir(capacity=20, width=1, half_life=float("inf"), seed=seed)
        reservoir.add(np.arange(120.0)[:, None])
        reservoir.add(np.arange(120.0, 200.0)[:, None])
        kept[reservoir.rows()[:, 0].astype(int)] += 1
    assert kept.sum() == 400 * 20
    assert kept[:20].mean() == pytest.approx(40, abs=6)  # those that were there first have no advantage
    assert kept[120:].mean() == pytest.approx(40, abs=3)


def test_a_row_is_held_once_and_fewer_rows_than_room_all_are():
    reservoir = DecayedReservoir(capacity=30, width=2, half_life=10.0, seed=0)
    reservoir.add(np.arange(40.0).reshape(20, 2))
    assert sorted(reservoir.rows()[:, 0].tolist()) == list(np.arange(0.0, 40.0, 2.0))
    reservoir.add(np.arange(40.0, 4_000.0).reshape(-1, 2))
    assert len(set(reservoir.rows()[:, 0].tolist())) == 30
    assert (reservoir.rows()[:, 1] == reservoir.rows()[:, 0] + 1).all()
