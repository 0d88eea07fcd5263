"""What drifted is named, by the right combination; without drift next to nothing is."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

import dovetail as dt

from .windows import COLUMNS, window


@pytest.mark.parametrize("where", [{"b": 3}, {"a": 1, "b": 2}, {"a": 0, "b": 4, "c": 7}])
@pytest.mark.parametrize(
    ("planted", "what"), [({"slower": 2.0}, "m"), ({"wrong": 0.9}, "error"), ({"more": 0.05}, "share")]
)
def test_the_combination_that_drifted_is_named_first(where, planted, what):
    draws = np.random.default_rng(6)
    found = dt.drift(window(draws, 20_000), window(draws, 20_000, where=where, **planted), least_share=0.002, **COLUMNS)
    assert found.drifted
    assert (found.findings[0].values, found.findings[0].what) == (where, what)
    assert found.findings[0].after > found.findings[0].before
    assert len(found.findings) <= 2


def test_two_drifts_are_both_named():
    draws = np.random.default_rng(0)
    current = window(draws, 20_000, where={"a": 1, "b": 2}, slower=2.0)
    current["m"] = current["m"] - 2.0 * ((current["a"] == 0) & (current["c"] == 3))
    found = dt.drift(window(draws, 20_000), current, **COLUMNS)
    assert [each.values for each in found.findings] == [{"a": 1, "b": 2}, {"a": 0, "c": 3}]


def test_a_drift_of_all_rows_is_of_all_rows():
    draws = np.random.default_rng(0)
    current = window(draws, 5_000)
    current["m"] = current["m"] * 3
    found = dt.drift(window(draws, 5_000), current, **COLUMNS)
    assert [(each.what, each.values) for each in found.findings] == [("spread of m", {})]
    assert str(found.findings[0]).startswith("all rows: spread of m wider than before")


def test_false_alarms_are_as_rare_as_asked_for():
    draws = np.random.default_rng(1)
    alarms = [dt.drift(window(draws, 2_000), window(draws, 1_000), **COLUMNS).drifted for _ in range(40)]
    assert sum(alarms) <= 6  # 5% of 40 are 2; 7 or more of them come once in 250


def test_accuracy_and_calibration_before_and_now():
    draws = np.random.default_rng(0)

    def scored(off):
        probability = draws.random(10_000)
        return {
            "g": draws.integers(0, 2, 10_000),
            "p": probability,
            "y": (draws.random(10_000) < probability - off) * 1,
        }

    same = dt.drift(scored(0.0), scored(0.0), attributes=["g"], label="y", probability="p")
    fell = dt.drift(scored(0.0), scored(0.15), attributes=["g"], label="y", probability="p")
    assert not same.drifted
    assert [(each.what, each.values) for each in fell.findings] == [("calibration", {})]
    assert fell.before.calibration_error < 0.03 < 0.1 < fell.after.calibration_error
    assert fell.after.accuracy < fell.before.accuracy
    assert "calibration error 0.0" in str(fell)


def test_columns_have_their_tests_and_stability():
    draws = np.random.default_rng(0)
    before, after = window(draws, 5_000), window(draws, 5_000, where={"c": 1}, more=0.3)
    found = {each.name: each for each in dt.drift(before, after, **COLUMNS).columns}
    assert {name: each.test for name, each in found.items()} == {
        "a": "chi-squared",
        "b": "chi-squared",
        "c": "chi-squared",
        "m": "ks",
        "skewed": "ks",
    }
    assert found["c"].drifted
    assert found["c"].psi > 0.25
    assert not found["m"].drifted
    assert found["m"].psi < 0.05


def test_frames_categories_nulls_and_new_values():
    draws = np.random.default_rng(0)
    before, after = (pd.DataFrame(window(draws, 4_000)) for _ in range(2))
    after.loc[: len(after) // 5, "a"] = 9
    after["b"] = after["b"].astype(object).where(draws.random(len(after)) > 0.2, None)
    before["b"] = before["b"].astype(object)
    found = dt.drift(before, after, **COLUMNS)
    assert [each.values for each in found.findings[:2]] == [{"b": None}, {"a": 9}]
    assert found.findings[0].before == 0.0


def test_infinite_missing_and_infrequent_values_are_said():
    draws = np.random.default_rng(0)
    before, after = window(draws, 2_000), window(draws, 2_000)
    after["m"][:3], after["skewed"][:5] = np.inf, np.nan
    before["user"], after["user"] = np.arange(2_000), np.arange(2_000, 4_000)
    found = dt.drift(before, after, attributes=["a", "user"], metrics=["m", "skewed"])
    assert found.notes == (
        "'m' is infinite in 3 rows; they count as the least and the most",
        "'skewed' is missing in 5 rows; its mean is of the others",
        "'user' has no value that is frequent enough to be compared; it is in no combination",
    )


def labelled(count, *, missing=0.0, text=False):
    """Rows of a model that is right in 98 of 100, of which a part has no label (yet)."""
    draws = np.random.default_rng(3)
    label = draws.integers(0, 2, count)
    prediction = np.where(draws.random(count) < 0.02, 1 - label, label)
    given = [
        None if gone else str(each) if text else each
        for gone, each in zip(draws.random(count) < missing, label, strict=True)
    ]
    return {"g": draws.integers(0, 3, count), "y": given, "predicted": prediction, "p": 0.02 + 0.96 * prediction}


@pytest.mark.parametrize("kind", [dict, pd.DataFrame, pl.DataFrame, lambda table: pd.DataFrame(table).convert_dtypes()])
@pytest.mark.parametrize("model", [{"prediction": "predicted"}, {"probability": "p"}])
def test_a_row_without_a_label_is_neither_right_nor_wrong(kind, model):
    before, after = (kind(labelled(4_000, missing=missing)) for missing in (0.0, 0.3))
    found = dt.drift(before, after, attributes=["g"], metrics=[], label="y", **model)
    assert not found.drifted
    assert found.after.accuracy == pytest.approx(0.98, abs=0.01)
    (note,) = found.notes
    assert note.startswith("'y' is missing in 1")
    assert note.endswith(" rows; they count neither as right nor as wrong")
    without = dt.drift(before, kind(labelled(4_000, missing=1.0)), attributes=["g"], metrics=[], label="y", **model)
    assert (without.drifted, without.after.accuracy, without.after.calibration_error) == (False, None, None)


def test_labels_of_text_are_not_compared_with_numbers():
    rows = labelled(100, text=True)
    said = "a prediction must be of its label's type; 'y' has text, 'predicted' has numbers. Turn both into text"
    with pytest.raises(dt.DovetailError, match=said):
        dt.drift(rows, rows, attributes=["g"], metrics=[], label="y", prediction="predicted")
    with pytest.raises(dt.DovetailError, match=said):
        dt.DriftDetector(rows, attributes=["g"], metrics=[], label="y", prediction="predicted")


def test_a_million_values_are_compared_within_bounds():
    users = np.random.default_rng(0).permutation(1_000_000)
    found = dt.drift({"user": users[:500_000]}, {"user": users[500_000:]})
    assert found.notes == ("'user' has no value that is frequent enough to be compared; it is in no combination",)


@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        ({"m": []}, {}, "the current window must have at least 20 rows to be compared; it has 0"),
        ({"m": ["x"] * 30}, {"metrics": ["m"]}, "'m' must be numbers; found 'x'"),
        ({"m": [1.0] * 30}, {"false_alarms": 0.0}, "false_alarms must be between 0 and 1, got 0.0"),
        ({"m": [1.0] * 30}, {"prediction": "m"}, "must have a label to be compared with"),
        ({"m": [1.0] * 30}, {"label": "m"}, "must have a prediction or a probability"),
        ({"m": [1.0] * 30}, {"metrics": ["m"], "attributes": ["m"]}, r"must be different; \['m'\] are named twice"),
        ({"m": [1.0] * 30}, {"metrics": ["n"]}, r"must have the columns \['n'\]; \['n'\] are not among its \['m'\]"),
        ({"m": [None] * 30}, {"attributes": ["m"], "label": "m"}, "must be different|must have a prediction"),
    ],
)
def test_what_cannot_be_compared_is_refused(changes, settings, message):
    with pytest.raises(dt.DovetailError, match=message):
        dt.drift({"m": [float(n) for n in range(30)]}, changes, **settings)


def test_an_attribute_of_text_in_one_window_and_numbers_in_the_other_is_refused():
    with pytest.raises(dt.DovetailError, match="'a' has numbers and text, such as"):
        dt.drift({"a": [1, 2] * 20}, {"a": ["1", "2"] * 20})


def test_labels_and_probabilities_that_cannot_be():
    rows = {"y": [0, 1] * 20, "p": [0.5, 2.0] * 20}
    with pytest.raises(dt.DovetailError, match="probabilities must be between 0 and 1; 'p' has others"):
        dt.drift(rows, rows, metrics=[], label="y", probability="p")
    rows = {"y": [0, 3] * 20, "p": [0.5, 0.2] * 20}
    with pytest.raises(dt.DovetailError, match="labels with a probability must be 0 or 1; 'y' has others"):
        dt.drift(rows, rows, metrics=[], label="y", probability="p")
