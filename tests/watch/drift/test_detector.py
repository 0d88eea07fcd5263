"""A drift of a stream is seen, by name, and no more often than stated where there is none."""

import numpy as np
import pytest

import dovetail as dt

from .windows import COLUMNS, window

WHERE = {"a": 1, "b": 2}


def detect(draws, **settings):
    return dt.DriftDetector(window(draws, 20_000), **COLUMNS, **settings)


@pytest.mark.parametrize("planted", [{"slower": 1.0}, {"wrong": 0.3}, {"more": 0.04}])
def test_a_drift_is_seen_and_named_and_small_batches_give_the_same(planted):
    draws = np.random.default_rng(0)
    one, other = detect(np.random.default_rng(1), block_rows=500), detect(np.random.default_rng(1), block_rows=500)
    usual, drifted = window(draws, 5_000), window(draws, 8_000, where=WHERE, **planted)
    assert one.update(usual) == []
    (alarm, *_) = one.update(drifted)
    assert alarm.findings[0].values == WHERE
    assert 5_000 < alarm.rows <= 11_000
    assert "a = 1 and b = 2" in str(alarm)
    stream = {name: np.concatenate([usual[name], drifted[name]]) for name in usual}
    for start in range(0, 13_000, 333):
        other.update({name: column[start : start + 333] for name, column in stream.items()})
    assert other.alarms == one.alarms


def test_a_smaller_drift_takes_longer():
    rows = []
    for slower in (3.0, 1.0, 0.6):
        draws = np.random.default_rng(2)
        detector = detect(draws, block_rows=200)
        while not detector.alarms:
            detector.update(window(draws, 200, where=WHERE, slower=slower))
        rows.append(detector.rows)
    assert rows[0] < rows[1] < rows[2]


def test_false_alarms_are_no_more_than_stated():
    draws = np.random.default_rng(3)
    detector = detect(draws, block_rows=200, false_alarms=0.02, blocks=8)
    detector.update(window(draws, 60_000))
    assert len(detector.alarms) <= 12  # 300 blocks at 2% are 6 at most; they overlap


def test_values_that_the_reference_does_not_have_are_new():
    draws = np.random.default_rng(4)
    found = window(draws, 2_000)
    found["a"][::4] = 77
    (alarm, *_) = detect(draws).update(found)
    assert alarm.findings[0].values == {"a": "(new)"}


def test_settings_that_cannot_be():
    with pytest.raises(dt.DovetailError, match=r"block_rows at least 20 and blocks at least 1; got 0\.001, 5 and 64"):
        detect(np.random.default_rng(0), block_rows=5)
    with pytest.raises(dt.DovetailError, match="the reference must have at least 20 rows to be compared; it has 2"):
        dt.DriftDetector({"m": [1.0, 2.0]})


def test_an_empty_batch_raises_nothing():
    draws = np.random.default_rng(0)
    detector = detect(draws)
    assert detector.update({name: column[:0] for name, column in window(draws, 10).items()}) == []


def test_saved_and_loaded_it_goes_on_as_if_nothing_had_been(tmp_path):
    draws = np.random.default_rng(5)
    one = detect(draws, block_rows=500)
    one.update(window(draws, 3_300, where=WHERE, slower=3.0))
    assert one.alarms
    other = dt.DriftDetector.load(one.save(tmp_path / "detector"))
    assert (other.rows, other.alarms, other.tests) == (one.rows, one.alarms, one.tests)
    stream = [window(draws, 777, where=WHERE, slower=slower, wrong=0.02) for slower in (0.0, 0.3, 0.6, 0.9, 0.9, 0.9)]
    assert [one.update(batch) for batch in stream] == [other.update(batch) for batch in stream]
    assert len(one.alarms) > 1


def test_what_is_no_saved_detector_is_refused(tmp_path):
    saved = dt.Monitor(metrics=["m"], attributes=[]).save(tmp_path / "monitor")
    with pytest.raises(
        dt.DovetailError, match=r"monitor must be a drift detector that was saved; .*\(it is a monitor\)"
    ):
        dt.DriftDetector.load(saved)
