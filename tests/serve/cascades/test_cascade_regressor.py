import numpy
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import DataConversionWarning
from sklearn.linear_model import Ridge
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

import dovetail as dt

CALLS: list[int] = []


def costly(X):
    """The second column where the first says so, at a price that grows with the rows."""
    CALLS.append(len(X))
    X = numpy.asarray(X)
    for _ in range(2000):
        numpy.sort(X, axis=0)
    return numpy.where(X[:, :1] > 1, X[:, 1:2], 0)


def rows(count, *, seed=0):
    X = numpy.random.default_rng(seed).normal(size=(count, 2))
    return X, 2 * X[:, 0] + numpy.where(X[:, 0] > 1, 3 * X[:, 1], 0)


def pipeline():
    features = ColumnTransformer([("cheap", "passthrough", [0]), ("costly", FunctionTransformer(costly), [0, 1])])
    return Pipeline([("features", features), ("model", Ridge(alpha=1e-3))])


def test_rows_where_the_cheap_group_is_enough_are_answered_from_it():
    cascade = dt.CascadeRegressor(pipeline(), within=0.2, lose=0.02, batch_rows=2000).fit(*rows(6000))
    assert cascade.stages_ == [("cheap",)], cascade.why_plain_
    X, y = rows(2000, seed=1)
    CALLS.clear()
    found = cascade.predict(X)
    assert sum(CALLS) < 1200
    off = numpy.abs(found - cascade.plain_.predict(X)) > 0.2
    assert off.mean() <= 0.02 + 3 * (0.02 / 2000) ** 0.5
    assert cascade.score(X, y) > 0.95


def test_values_may_be_a_column():
    X, y = rows(3000)
    with pytest.warns(DataConversionWarning, match="column-vector y"):
        column = dt.CascadeRegressor(pipeline(), within=0.5, lose=0.05).fit(X, y[:, None])
    assert column.predict(X).shape == (3000,)


def test_a_distance_that_nothing_keeps_gives_the_plain_pipeline():
    cascade = dt.CascadeRegressor(pipeline(), within=1e-9).fit(*rows(3000))
    assert cascade.why_plain_
    X, _ = rows(50, seed=1)
    assert (cascade.predict(X) == cascade.plain_.predict(X)).all()


def test_a_distance_must_be_one():
    with pytest.raises(dt.DovetailError, match="within must be a distance above 0"):
        dt.CascadeRegressor(pipeline(), within=0.0).fit(*rows(300))
