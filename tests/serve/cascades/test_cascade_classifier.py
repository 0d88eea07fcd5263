import numpy
import pandas
import polars
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import get_scorer
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

import dovetail as dt
from dovetail.serve.cascades.costs import CallCost

CALLS: list[int] = []


def costly(X):
    """Squares of what it gets, at a price that grows with the rows."""
    CALLS.append(len(X))
    X = numpy.asarray(X)
    for _ in range(300):
        numpy.sort(X, axis=0)
    return X**2


def rows(count, *, seed=0, easy=0.8, classes=2):
    """Rows of which column 0 tells the class of most, and the square of column 1 that of the others."""
    draw = numpy.random.default_rng(seed)
    y = draw.integers(0, classes, count)
    is_easy = draw.random(count) < easy
    cheap = numpy.where(is_easy, 8 * (y - (classes - 1) / 2), 0) + draw.normal(0, 0.3, count)
    hidden = numpy.sqrt(y + 0.2) * draw.choice([-1, 1], count)
    return numpy.column_stack([cheap, hidden]), y


def noise(share, count):
    """What a share may be off by on so many rows, though the promise about all rows is kept."""
    return 3 * (share / count) ** 0.5


def pipeline(model=None):
    features = ColumnTransformer([("cheap", "passthrough", [0]), ("costly", FunctionTransformer(costly), [0, 1])])
    return Pipeline([("features", features), ("model", model or LogisticRegression())])


def test_easy_rows_are_answered_from_the_cheap_group_and_the_rest_goes_on():
    cascade = dt.CascadeClassifier(pipeline(), lose=0.01, batch_rows=2000).fit(*rows(6000))
    assert (cascade.stages_, cascade.why_plain_) == ([("cheap",)], "")
    X, y = rows(2000, seed=1)
    CALLS.clear()
    found = cascade.predict(X)
    assert len(CALLS) == 1
    assert CALLS[0] < 700  # those that nobody could tell from column 0
    assert (cascade.plain_.predict(X) == y).mean() - (found == y).mean() <= 0.01 + noise(0.01, 2000)
    assert cascade.expected_share_ < 0.6
    assert cascade.score(X, y) > 0.97


def test_chances_are_of_the_stage_that_answers():
    cascade = dt.CascadeClassifier(pipeline(), lose=0.01).fit(*rows(6000))
    X, _ = rows(500, seed=1)
    chances = cascade.predict_proba(X)
    assert numpy.allclose(chances.sum(axis=1), 1)
    assert (cascade.classes_[chances.argmax(axis=1)] == cascade.predict(X)).all()


SCALED = Pipeline([("scale", StandardScaler()), ("model", LogisticRegression())])


@pytest.mark.parametrize("model", [RidgeClassifier(), LogisticRegression(), SCALED])
@pytest.mark.parametrize("classes", [2, 3])
def test_any_classifier_and_several_classes(model, classes):
    X, y = rows(6000, classes=classes)
    names = numpy.array(["ant", "bee", "cow"])[y]
    cascade = dt.CascadeClassifier(pipeline(model), lose=0.02).fit(X, names)
    fresh, labels = rows(2000, seed=1, classes=classes)
    expected = numpy.array(["ant", "bee", "cow"])[labels]
    lost = (cascade.plain_.predict(fresh) == expected).mean() - (cascade.predict(fresh) == expected).mean()
    assert lost <= 0.02 + noise(0.02, 2000)


def test_frames_sparse_groups_and_unions():
    X, y = rows(4000)
    frame = pandas.DataFrame({"cheap": X[:, 0], "hidden": X[:, 1], "kind": (X[:, 0] > 0).astype(str)})
    features = ColumnTransformer(
        [("kind", OneHotEncoder(), ["kind"]), ("costly", FunctionTransformer(costly), ["cheap", "hidden"])]
    )
    cascade = dt.CascadeClassifier(Pipeline([("f", features), ("m", LogisticRegression())]), lose=0.02).fit(frame, y)
    assert cascade.predict(frame[:10]).shape == (10,)
    union = FeatureUnion([("all", FunctionTransformer()), ("costly", FunctionTransformer(costly))])
    cascade = dt.CascadeClassifier(Pipeline([("f", union), ("m", LogisticRegression())]), lose=0.02).fit(X, y)
    assert cascade.stages_ == [("all",)]


def test_a_sparse_group_is_dense_where_the_pipeline_makes_it_so():
    X, y = rows(2000)
    frame = pandas.DataFrame({"cheap": X[:, 0], "hidden": X[:, 1], "kind": (X[:, 0] > 0).astype(str)})
    features = ColumnTransformer([("kind", OneHotEncoder(), ["kind"]), ("rest", "passthrough", ["cheap", "hidden"])])
    cascade = dt.CascadeClassifier(Pipeline([("f", features), ("m", GaussianNB())]), lose=0.02).fit(frame, y)
    assert cascade.predict(frame).shape == (2000,)


def test_where_nothing_is_easy_it_is_the_plain_pipeline():
    cascade = dt.CascadeClassifier(pipeline(), lose=0.01).fit(*rows(4000, easy=0))
    assert cascade.stages_ == []
    assert cascade.why_plain_
    X, _ = rows(500, seed=1)
    assert (cascade.predict(X) == cascade.plain_.predict(X)).all()


def test_too_few_rows_are_named():
    cascade = dt.CascadeClassifier(pipeline(), lose=0.001).fit(*rows(1000))
    assert "2995 rows must be there to calibrate with; there are 200" in cascade.why_plain_


def test_it_is_an_estimator():
    cascade = dt.CascadeClassifier(pipeline(), lose=0.02)
    assert clone(cascade).get_params()["lose"] == 0.02
    assert cascade.fit(*rows(3000)).predict(rows(1)[0]).shape == (1,)


def test_the_best_rows_are_found_by_few_of_the_costly_features():
    X, y = rows(8000, easy=1.0)
    cascade = dt.CascadeClassifier(pipeline(), top_k=20, precision=0.9).fit(X, y)
    assert cascade.stages_ == [("cheap",)]
    fresh, _ = rows(4000, seed=1, easy=1.0)
    CALLS.clear()
    found = cascade.top(fresh)
    assert sum(CALLS) < 2500
    score = cascade.plain_.decision_function(fresh)
    best = numpy.argsort(-score)[:20]
    assert len({*found} & {*best}) >= 18
    assert (numpy.diff(score[found]) <= 0).all()
    assert len(cascade.top(fresh[:7])) == 7


@pytest.mark.parametrize("kind", [pandas.DataFrame, polars.DataFrame])
def test_frames_with_a_group_that_passes_through_are_answered_and_ranked(kind):
    def frame(X):
        return kind({"cheap": X[:, 0], "hidden": X[:, 1]})

    features = ColumnTransformer(
        [("cheap", "passthrough", ["cheap"]), ("costly", FunctionTransformer(costly), ["cheap", "hidden"])]
    )
    whole = Pipeline([("features", features), ("model", LogisticRegression())])
    X, y = rows(6000)
    # Shuffled, so that rows by number are not rows by label.
    fresh = frame(rows(1000, seed=1)[0])
    fresh = fresh.sample(frac=1.0, random_state=0) if kind is pandas.DataFrame else fresh
    cascade = dt.CascadeClassifier(whole, lose=0.02).fit(frame(X), y)
    assert cascade.stages_ == [("cheap",)]
    assert (cascade.predict(fresh) == cascade.plain_.predict(fresh)).mean() > 0.9
    ranking = dt.CascadeClassifier(whole, top_k=20, precision=0.9).fit(frame(X), y)
    assert ranking.stages_ == [("cheap",)]
    best = numpy.argsort(-ranking.plain_.decision_function(fresh))[:20]
    assert len({*ranking.top(fresh)} & {*best}) >= 15


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lose": 0}, "lose and confidence must lie between 0 and 1"),
        ({"calibrate_share": 1.5}, "calibrate_share must lie between"),
        ({"batch_rows": 0}, "batch_rows must be at least 1"),
        ({"top_k": 0}, "top_k must be at least 1"),
        ({"pipeline": LogisticRegression()}, "must have two steps"),
        ({"pipeline": Pipeline([("s", StandardScaler()), ("m", LogisticRegression())])}, "they are a StandardScaler"),
        (
            {"pipeline": Pipeline([("f", FeatureUnion([("one", StandardScaler())])), ("m", LogisticRegression())])},
            "two groups of features or more",
        ),
    ],
)
def test_what_cannot_be_is_refused(change, message):
    arguments = {"pipeline": pipeline(), **change}
    with pytest.raises(dt.DovetailError, match=message):
        dt.CascadeClassifier(**arguments).fit(*rows(300))


def test_labels_must_match_and_top_must_be_asked_for():
    X, y = rows(300)
    with pytest.raises(dt.DovetailError, match="300 rows and 299 labels"):
        dt.CascadeClassifier(pipeline()).fit(X, y[:-1])
    with pytest.raises(dt.DovetailError, match="make the cascade with top_k="):
        dt.CascadeClassifier(pipeline()).fit(X, y).top(X)


def test_it_says_what_the_plain_pipeline_can():
    X, y = rows(3000)
    chances, scores = (dt.CascadeClassifier(pipeline(model), lose=0.02) for model in (None, RidgeClassifier()))
    for each in (chances, scores):
        with pytest.raises(NotFittedError):
            each.predict(X)
        assert not hasattr(each, "n_features_in_")
        assert each.fit(X, y).n_features_in_ == 2
        assert get_scorer("roc_auc")(each, X, y) > 0.9
    assert (hasattr(chances, "predict_proba"), hasattr(chances, "decision_function")) == (True, False)
    assert (hasattr(scores, "predict_proba"), hasattr(scores, "decision_function")) == (False, True)
    assert ((scores.decision_function(X) > 0) == scores.predict(X)).all()


def test_one_class_is_refused_and_of_no_rows_none_is_best():
    X, y = rows(300)
    with pytest.raises(dt.DovetailError, match=r"two classes or more, .*; of 180 rows all are 0"):
        dt.CascadeClassifier(pipeline()).fit(X, numpy.zeros(300, dtype=int))
    ranking = dt.CascadeClassifier(pipeline(), top_k=5)
    with pytest.raises(NotFittedError):
        ranking.top(X)
    assert ranking.fit(X, y).top(X[:0]).shape == (0,)


def test_labels_may_be_a_column():
    X, y = rows(3000)
    with pytest.warns(DataConversionWarning, match="column-vector y"):
        cascade = dt.CascadeClassifier(pipeline(), lose=0.02).fit(X, y[:, None])
    assert cascade.predict(X).shape == (3000,)
    with pytest.raises(dt.DovetailError, match=r"one label for each row; got labels of shape \(3000, 2\)"):
        dt.CascadeClassifier(pipeline(), lose=0.02).fit(X, numpy.column_stack([y, y]))


def test_costs_are_a_fixed_part_and_one_by_row():
    times = iter([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 19.0, 20.0, 29.0, 30.0, 39.0])
    cost = CallCost.measure(lambda rows: None, (10, None), (90, None), clock=lambda: next(times))
    assert (cost.row, cost.fixed) == (0.1, 0.0)
    assert CallCost(fixed=2.0, row=0.5).of(4, calls=1) == 4.0
