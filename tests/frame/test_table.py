"""Tables: what pandas gives, of pandas, Polars, Arrow and dicts; before the loop is compiled and after."""

import datetime

import numpy
import pandas
import pytest

import dovetail.frame as df
from dovetail.frame import group_by, kernels
from dovetail.vocabulary import DovetailError

N = 5000
generator = numpy.random.default_rng(0)
FRAME = pandas.DataFrame(
    {
        "state": generator.choice(["CA", "NY", "TX", "AK"], N),
        "year": generator.integers(1980, 2020, N),
        "id": generator.integers(-(2**60), 2**60, N)[generator.integers(0, 50, N)],
        "people": generator.integers(0, 1000, N).astype("i4"),
        "rate": numpy.where(generator.random(N) < 0.1, numpy.nan, generator.normal(size=N)),
        "small": generator.normal(size=N).astype("f4"),
        "flag": generator.random(N) < 0.5,
    }
)


def tables():
    yield "pandas", FRAME
    yield "dict", {name: FRAME[name].to_numpy() for name in FRAME}
    polars = pytest.importorskip("polars")
    yield "polars", polars.DataFrame({name: FRAME[name].to_numpy() for name in FRAME})
    pyarrow = pytest.importorskip("pyarrow")
    yield "arrow", pyarrow.table({name: pyarrow.array(FRAME[name].to_numpy()) for name in FRAME})


def as_pandas(found, keys):
    if isinstance(found, pandas.DataFrame):
        return found
    columns = (
        found
        if isinstance(found, dict)
        else {name: numpy.asarray(found[name]) for name in getattr(found, "column_names", None) or found.columns}
    )
    return pandas.DataFrame(columns).set_index(keys)


def compile_group_by(monkeypatch):
    """Have loops compiled before they run."""
    plain = kernels.group_kernel_of

    def waited(loop, *, masked):
        kernel = plain(loop, masked=masked)
        assert kernel.wait(120)
        return kernel

    monkeypatch.setattr(group_by, "group_kernel_of", waited)


@pytest.mark.parametrize("ready", [False, True])
@pytest.mark.parametrize("keys", [["state"], ["year"], ["id"], ["state", "year"], ["flag", "state"]])
@pytest.mark.parametrize("method", ["sum", "mean", "count"])
def test_group_bys_are_pandas(keys, method, ready, monkeypatch):
    if ready:
        compile_group_by(monkeypatch)
    values = ["people", "rate", "small", "index"]
    right = FRAME[(FRAME.people > 300) & (FRAME.state != "AK")]
    right = right.assign(index=numpy.exp(right.rate) * 0.5 + right.people)
    wanted = getattr(right.groupby(keys if len(keys) > 1 else keys[0])[values], method)()
    for name, data in tables():
        t = df.table(data)
        t = t[(t.people > 300) & (t.state != "AK")].assign(index=numpy.exp(t.rate) * 0.5 + t.people)
        found = as_pandas(getattr(t.groupby(keys if len(keys) > 1 else keys[0])[values], method)(), keys)
        assert list(found.columns) == values, name
        numpy.testing.assert_array_equal(numpy.asarray(found.index.tolist()), numpy.asarray(wanted.index.tolist()))
        for each in values:
            close = 1e-5 if each == "small" else 1e-12
            numpy.testing.assert_allclose(found[each], wanted[each], rtol=close, atol=close)
        assert found["people"].dtype == wanted["people"].dtype or name != "pandas"


def test_a_pandas_table_comes_back_as_pandas_has_it():
    t = df.table(FRAME)
    found = t[t.rate > 0].assign(twice=t.people * 2, one=1).collect()
    wanted = FRAME[FRAME.rate > 0].assign(twice=lambda f: f.people * 2, one=1)
    pandas.testing.assert_frame_equal(found, wanted)
    grouped = t[t.rate > 0][["year", "people"]].groupby("year").sum()
    pandas.testing.assert_frame_equal(grouped, FRAME[FRAME.rate > 0][["year", "people"]].groupby("year").sum())


@pytest.mark.parametrize("column", ["people", "rate", "small", "flag"])
@pytest.mark.parametrize("method", ["sum", "mean", "min", "max", "count"])
def test_columns_reduce_as_pandas(column, method):
    t = df.table(FRAME)
    chosen, right = t[t.year > 2000][column], FRAME[FRAME.year > 2000][column]
    numpy.testing.assert_allclose(getattr(chosen, method)(), getattr(right, method)(), rtol=1e-6)
    numpy.testing.assert_allclose(getattr(t[column], method)(), getattr(FRAME[column], method)(), rtol=1e-6)


def test_filters_on_filters_text_and_lists():
    t = df.table(FRAME)
    found = t[t.state.isin(["CA", "XX"])]
    found = found[found.people < 100]
    wanted = FRAME[FRAME.state.isin(["CA", "XX"]) & (FRAME.people < 100)]
    assert len(found) == len(wanted)
    pandas.testing.assert_frame_equal(found.collect(), wanted)
    assert len(t[t.state == "XX"]) == 0
    assert (t[t.state == "CA"].people * 2).sum() == 2 * FRAME[FRAME.state == "CA"].people.sum()
    assert len(t[t.state.isin([])]) == 0


def test_what_it_does_not_know_is_the_librarys():
    t = df.table(FRAME)
    chosen = t[t.people > 500]
    pandas.testing.assert_frame_equal(chosen.describe(), FRAME[FRAME.people > 500].describe())
    assert chosen.state.str.lower().iloc[0] == FRAME[FRAME.people > 500].state.iloc[0].lower()
    wanted = FRAME.groupby("state")[["rate"]].median()
    pandas.testing.assert_frame_equal(t.groupby("state")[["rate"]].median(), wanted)
    pandas.testing.assert_frame_equal(t.groupby("rate")[["people"]].sum(), FRAME.groupby("rate")[["people"]].sum())
    pandas.testing.assert_series_equal(t.groupby("state").size(), FRAME.groupby("state").size())
    numpy.testing.assert_array_equal(numpy.sort(chosen.people), numpy.sort(FRAME[FRAME.people > 500].people))


def test_missing_values_are_the_librarys():
    missing = pandas.DataFrame({"k": ["a", None, "b", "a"], "x": pandas.array([1, None, 3, 4], dtype="Int64")})
    t = df.table(missing)
    pandas.testing.assert_frame_equal(t.groupby("k").sum(), missing.groupby("k").sum())
    pandas.testing.assert_frame_equal(t.collect(), missing)


@pytest.mark.parametrize("rows", [0, 1])
def test_few_rows(rows):
    part = FRAME.iloc[:rows]
    t = df.table(part)
    pandas.testing.assert_frame_equal(t[t.people >= 0].collect(), part)
    found, wanted = t[["year", "people"]].groupby("year").sum(), part[["year", "people"]].groupby("year").sum()
    pandas.testing.assert_frame_equal(found, wanted)


def test_bad_input_is_refused():
    with pytest.raises(DovetailError, match="must be given a table of pandas, Polars or Arrow"):
        df.table(7)
    with pytest.raises(DovetailError, match=r"one length, got \[1, 2\]"):
        df.table({"a": [1], "b": [1, 2]})
    with pytest.raises(DovetailError, match="'x' must have 2 rows as its table, got 3"):
        df.table({"a": [1, 2]}).assign(x=["u", "v", "w"])
    with pytest.raises(TypeError, match="add"):  # NumPy's own
        df.table({"a": ["x"]}).a.sum()
    with pytest.raises(KeyError):
        df.table({"a": [1]})["b"]


def test_text_is_asked_of_distinct_values():
    t = df.table(FRAME)
    right = FRAME.state.str.slice(0, 1)
    found = t.state.str.slice(0, 1)
    assert found.unique().tolist() == right.unique().tolist()
    assert found[found != "C"].unique().tolist() == right[right != "C"].unique().tolist()
    chosen = t[t.state.str.contains("A")].groupby(["year", "state"])[["people"]].sum()
    wanted = FRAME[FRAME.state.str.contains("A")].groupby(["year", "state"])[["people"]].sum()
    pandas.testing.assert_frame_equal(chosen, wanted)
    lengths = t.assign(first=found, size=t.state.str.len()).collect()
    assert lengths["first"].tolist() == right.tolist()
    assert lengths["size"].tolist() == FRAME.state.str.len().tolist()


@pytest.mark.parametrize("ready", [False, True])
def test_means_of_large_whole_numbers_do_not_wrap(ready, monkeypatch):
    if ready:
        compile_group_by(monkeypatch)
    large = pandas.DataFrame({"k": ["b", "a", "b", "b"], "v": [2**62] * 4, "u": numpy.full(4, 2**63, "u8")})
    t = df.table(large)
    assert t.v.mean() == large.v.mean()
    assert t[t.k == "b"].u.mean() == large[large.k == "b"].u.mean()
    pandas.testing.assert_frame_equal(t.groupby("k")[["v", "u"]].mean(), large.groupby("k")[["v", "u"]].mean())


DATED = pandas.DataFrame(
    {
        "date": pandas.to_datetime(["2020-01-01", "2021-01-01", "2020-01-01"]),
        "name": ["a", "b", "c"],
        "grade": pandas.Categorical(["low", "high", "low"], categories=["low", "mid", "high"], ordered=True),
        "n": [1, 2, 3],
    }
)


def test_dates_and_columns_are_compared_as_pandas_does():
    t = df.table(DATED)
    pandas.testing.assert_frame_equal(t[t.date == "2020-01-01"].collect(), DATED[DATED.date == "2020-01-01"])
    pandas.testing.assert_frame_equal(t[t.date > "2020-06-01"].collect(), DATED[DATED.date > "2020-06-01"])
    pandas.testing.assert_frame_equal(t[t.grade == "low"].collect(), DATED[DATED.grade == "low"])
    assert len(t[t.n == "a"]) == len(DATED[DATED.n == "a"])
    some = t[t.n > 1]
    pandas.testing.assert_frame_equal(
        some[some.date == "2020-01-01"].collect(), DATED[(DATED.n > 1) & (DATED.date == "2020-01-01")]
    )


def test_group_sums_are_as_wide_as_they_must_be():
    narrow = pandas.DataFrame(
        {"k": [1, 1, 2], "a": numpy.array([100, 100, 1], "i1"), "u": numpy.array([1, 2, 3], "u1")}
    )
    pandas.testing.assert_frame_equal(df.table(narrow).groupby("k").sum(), narrow.groupby("k").sum())


def test_columns_of_other_rows_are_the_librarys_to_align():
    t, some = df.table(DATED), DATED[DATED.n > 1]
    assert (t.n + t[t.n > 1].n).sum() == (DATED.n + some.n).sum()
    assert (t[t.n > 1].n + t[t.n > 1].n).sum() == (some.n + some.n).sum()
    pandas.testing.assert_frame_equal(t.assign(z=t[t.n > 1].n).collect(), DATED.assign(z=some.n))
    pandas.testing.assert_frame_equal(t[t.n > 1].assign(z=t.n, y="a").collect(), some.assign(z=DATED.n, y="a"))
    pandas.testing.assert_frame_equal(
        t[t.n > 1].assign(z=numpy.array([7, 8])).collect(), some.assign(z=numpy.array([7, 8]))
    )


def test_groups_of_categories_are_in_their_order():
    found, wanted = df.table(DATED).groupby("grade")[["n"]], DATED.groupby("grade")[["n"]]
    pandas.testing.assert_frame_equal(found.sum(), wanted.sum())
    found, wanted = (each.groupby("grade", observed=False)[["n"]] for each in (df.table(DATED), DATED))
    pandas.testing.assert_frame_equal(found.sum(), wanted.sum())


def test_one_column_of_groups_is_one_as_pandas_has_it():
    t = df.table(FRAME)
    for method in ("sum", "mean", "count", "median"):
        found, wanted = (getattr(each.groupby("state")["rate"], method)() for each in (t, FRAME))
        pandas.testing.assert_series_equal(found, wanted)
    pandas.testing.assert_frame_equal(
        t.groupby(t.state)[["people"]].sum(), FRAME.groupby(FRAME.state)[["people"]].sum()
    )


def test_functions_of_several_columns_and_containers_are_the_librarys():
    t = df.table(FRAME)
    numpy.testing.assert_array_equal(
        numpy.concatenate([t.people, t.year]), numpy.concatenate([FRAME.people, FRAME.year])
    )
    numpy.testing.assert_array_equal(numpy.column_stack([t.id, t.id]), numpy.column_stack([FRAME.id, FRAME.id]))
    assert numpy.average(t.people, weights=t.year) == numpy.average(FRAME.people, weights=FRAME.year)
    column = t.people
    column += 1
    assert column.sum() == (FRAME.people + 1).sum()
    assert list(t.people) == list(FRAME.people)
    assert list(t) == list(FRAME)
    assert "people" in t
    assert "crimes" not in t


def test_reductions_and_columns_that_loops_do_not_hold_are_the_librarys():
    t = df.table(DATED.assign(whole=pandas.array([1, None, 3], dtype="Int64")))
    assert (t.date.min(), t.date.max(), t.name.count()) == (DATED.date.min(), DATED.date.max(), 3)
    assert (t.whole.sum(), t.whole.mean(), t.whole.count()) == (4, 2.0, 2)
    assert t.n[numpy.array([True, False, True])].sum() == 4
    assert t.n.isin(["a", 1]).collect().tolist() == DATED.n.isin(["a", 1]).tolist()
    missing = pandas.DataFrame({"x": [1.0, None, 3.0]})
    found = df.table(missing).assign(z=df.table(missing).x.fillna(0), y="a").collect()
    pandas.testing.assert_frame_equal(found, missing.assign(z=missing.x.fillna(0), y="a"))
    polars, pyarrow = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    for library in (polars.DataFrame, pyarrow.table):
        column = df.table(library({"x": [1, None, 3]})).x
        assert (column.sum(), column.mean(), column.max(), column.count()) == (4, 2.0, 3, 2)


def test_names_of_columns_stay_as_they_are():
    numbered = pandas.DataFrame(numpy.arange(6.0).reshape(3, 2))
    t = df.table(numbered)
    pandas.testing.assert_frame_equal(t[t[0] > 0].collect(), numbered[numbered[0] > 0])
    pandas.testing.assert_frame_equal(t.assign(z=1).collect(), numbered.assign(z=1))


def test_keys_that_are_floats_or_missing_have_groups_in_every_library():
    polars, pyarrow = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    columns = {"f": [0.5, 0.25, 0.5], "k": ["b", None, "b"], "x": [1, 2, 3]}
    for library in (polars.DataFrame, pyarrow.table, dict):
        t = df.table(library(columns))
        found = t.groupby("f")[["x"]].sum()
        assert [numpy.asarray(found[name]).tolist() for name in ("f", "x")] == [[0.25, 0.5], [2, 4]]
        if library is not dict:
            found = t.groupby("k")[["x"]].sum()
            named = found.to_dict(as_series=False) if library is polars.DataFrame else found.to_pydict()
            assert named == {"k": ["b", None], "x": [4, 2]}


def test_texts_that_differ_in_trailing_zeros_are_two():
    zeros = pandas.DataFrame({"k": ["a\0", "a", "a\0"], "x": [1, 2, 4]})
    found, wanted = df.table(zeros).groupby("k").sum(), zeros.groupby("k").sum()
    assert (found.index.tolist(), found.x.tolist()) == (wanted.index.tolist(), wanted.x.tolist())


def test_options_of_reductions_are_the_librarys():
    t = df.table(FRAME)
    assert numpy.isnan(t.rate.sum(skipna=False))
    assert numpy.isnan(t.rate.max(skipna=False))
    assert t.rate.mean(skipna=True) == pytest.approx(FRAME.rate.mean())


def test_dates_of_a_dict_are_compared_as_numpy_does():
    dates = numpy.array(["2020-01-01", "2021-01-01"], "M8[D]")
    t = df.table({"date": dates, "n": numpy.arange(2)})
    assert len(t[t.date == dates[1]].n) == 1
    numpy.testing.assert_array_equal(t.date == "text", dates == "text")


def of_library(library):
    """How a table of a library is made of columns, and these of it again."""
    if library == "polars":
        return pytest.importorskip("polars").DataFrame, lambda found: found.to_dict(as_series=False)
    if library == "pyarrow":
        return pytest.importorskip("pyarrow").table, lambda found: found.to_pydict()
    return (
        lambda columns: {name: numpy.asarray(values) for name, values in columns.items()},
        lambda found: {name: values.tolist() for name, values in found.items()},
    )


@pytest.mark.parametrize("library", ["polars", "pyarrow", "dict"])
def test_what_a_library_does_not_know_of_groups_and_columns_is_made_for_it(library):
    make, plain = of_library(library)
    columns = {"key": ["b", "a", "b", "a"], "n": [1, 2, 3, 4], "x": [1.0, 2.5, 4.0, 8.0]}
    data = make(columns)
    t, reference = df.table(data), pandas.DataFrame(columns)
    medians = reference.groupby("key")[["x"]].median().reset_index()
    assert plain(t.groupby("key")[["x"]].median()) == medians.to_dict("list")
    assert plain(t.groupby("key").n.max()) == {"key": ["a", "b"], "n": [4, 3]}
    assert plain(t.groupby("key").size()) == {"key": ["a", "b"], "size": [2, 2]}
    assert plain(t.groupby("key").agg({"n": "sum"})) == {"key": ["a", "b"], "n": [6, 4]}
    assert t.groupby("key").ngroups == 2
    assert plain(t.groupby("key", sort=False).first()) == {"key": ["b", "a"], "n": [1, 2], "x": [1.0, 2.5]}
    assert plain(t.assign(z="q").groupby("z")[["n"]].sum()) == {"z": ["q"], "n": [10]}
    assert plain(t[t.n > 1].assign(z=["u", "v", "w"]).collect())["z"] == ["u", "v", "w"]
    own = data["x"] if library != "polars" else data.get_column("x")
    assert plain(t.assign(z=own).collect())["z"] == columns["x"]
    with pytest.raises(DovetailError, match="the new column 'z' must have 4 rows as its table, got 2"):
        t.assign(z=["u", "v"])


@pytest.mark.parametrize("library", ["polars", "pyarrow"])
def test_a_condition_with_missing_values_is_the_librarys(library):
    make, plain = of_library(library)
    t = df.table(make({"n": [1, 2, 3], "there": [True, None, False]}))
    assert plain(t[t.there])["n"] == [1]


@pytest.mark.parametrize("library", ["polars", "pyarrow"])
def test_conditions_on_what_loops_do_not_hold_filter_as_pandas_does(library):
    make, plain = of_library(library)
    days = [datetime.date(2020, 1, day) for day in (1, 2, 3)]
    t = df.table(make({"s": ["a", None, "b", "a"], "n": [1, 2, 3, 4], "k": [1, None, 3, 1], "day": [*days, None],
                       "there": [True, None, False, True]}))  # fmt: skip

    def rows(condition):
        assert t.n[condition].collect().tolist() == plain(t[condition].collect())["n"]
        return t.n[condition].collect().tolist()

    assert rows(t.s == "a") == rows(t.s.isin(["a"])) == [1, 4]
    assert rows(t.s != "a") == rows(~(t.s == "a")) == [2, 3]
    assert rows(t.s.isin(["b", None])) == [2, 3]
    assert rows((t.n > 0) & (t.k != 1)) == [2, 3]
    assert rows(t.k > 1) == rows(t.k.isin([3, 5])) == [3]
    assert rows(t.k == t.n) == [1, 3]
    assert rows(t.day >= days[1]) == rows(t.day.isin(days[1:])) == [2, 3]
    assert rows(t.day >= numpy.datetime64("2020-01-02")) == [2, 3]
    assert rows(t.k > numpy.int64(1)) == [3]
    assert rows(t.there) == rows(~~t.there) == [1, 4]
    assert rows(~t.there) == rows(~t.there & (t.n > 1)) == rows((t.n > 1) & ~t.there) == [3]
    assert rows(t.there | (t.n == 2)) == [1, 2, 4]
    some = t[t.n > 1]
    assert plain(some[some.s == "a"].collect())["n"] == plain(some[t.there].collect())["n"] == [4]
    assert t[t.s == "a"].n.sum() == 5
    assert len(t[t.n == "a"]) == len(t[t.n.isin(["a"])]) == 0


@pytest.mark.parametrize("library", ["polars", "pyarrow", "dict"])
def test_groups_have_their_keys_and_free_names(library):
    make, plain = of_library(library)
    t = df.table(make({"key": ["b", "a", "b"], "size": [1, 1, 2], "n": [1, 2, 3]}))
    assert plain(t.groupby(t.n % 2)[["n"]].sum()) == {"key_2": [0, 1], "n": [2, 4]}
    found = t.groupby(["key", t.n % 2])[["n"]].max()
    assert plain(found) == {"key": ["a", "b"], "key_2": [0, 1], "n": [2, 3]}
    assert plain(t.groupby("size").size()) == {"size": [1, 2], "size_2": [2, 1]}
    assert plain(t.groupby("key")["key"].count()) == {"key": ["a", "b"], "key_2": [1, 2]}
    assert plain(t.groupby("key").agg({"n": ["sum", "max"]})) == {"key": ["a", "b"], "n_sum": [2, 4], "n_max": [2, 3]}
    assert plain(t.groupby("key").cumcount()) == {"cumcount": [0, 0, 1]}
    groups = t.groupby("key")
    assert len(groups) == len(groups[["n"]]) == len(t.groupby("key", sort=True)) == 2
    assert [(key, plain(rows)["n"]) for key, rows in groups] == [("a", [2]), ("b", [1, 3])]


def test_groups_of_pandas_are_iterated_as_its():
    t = df.table(FRAME)
    assert len(t.groupby("state")) == 4
    for (key, rows), (wanted_key, wanted) in zip(t.groupby("state"), FRAME.groupby("state"), strict=True):
        assert key == wanted_key
        pandas.testing.assert_frame_equal(rows, wanted)


@pytest.mark.parametrize("library", ["polars", "pyarrow"])
def test_groups_that_pandas_makes_have_the_types_that_the_table_had(library):
    make, plain = of_library(library)
    day = datetime.date(2020, 1, 1)
    t = df.table(make({"id": [2**53, 2**53 + 1, None], "day": [day, day, None], "there": [True, None, False]}))
    found = plain(t.groupby("id").max())
    assert found["id"] == [2**53, 2**53 + 1, None]
    assert found["day"] == [day, day, None]
    assert plain(t.groupby("day").id.max()) == {"day": [day, None], "id": [2**53 + 1, None]}
    assert plain(t.groupby("there", sort=False).first())["there"] == [True, None, False]


@pytest.mark.parametrize("library", ["polars", "pyarrow", "dict"])
def test_groups_are_added_beside_columns_that_loops_do_not_hold(library):
    make, plain = of_library(library)
    t = df.table(make({"key": ["b", "a", "b"], "s": ["x", "y", "z"], "n": [1, 2, 3]}))
    assert plain(t.groupby("key").sum()) == {"key": ["a", "b"], "s": ["y", "xz"], "n": [2, 4]}


def test_groups_are_added_beside_texts_that_were_made():
    frame = pandas.DataFrame({"key": ["b", "a", "b"], "s": ["x", "y", "z"], "n": [1, 2, 3]})
    t = df.table(frame)
    found = t.assign(z=t.s.str.upper()).groupby("key").sum()
    pandas.testing.assert_frame_equal(found, frame.assign(z=frame.s.str.upper()).groupby("key").sum())


def test_columns_of_one_name_are_refused():
    for name in ("a", 0):
        with pytest.raises(DovetailError, match=f"must have different names, got {name!r} twice"):
            df.table(pandas.DataFrame([[1, 2]], columns=[name, name]))


def test_what_is_no_condition_in_brackets_is_the_librarys():
    columns = {"n": [1, 2, 3], "s": ["a", "b", "c"]}
    polars, pyarrow = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    data = polars.DataFrame(columns)
    t = df.table(data)
    for key in (slice(0, 2), numpy.array([0, 2]), 0):
        assert polars.DataFrame(t[key]).equals(polars.DataFrame(data[key]))
    for key in (data["n"] != 2, polars.col("n") != 2):
        assert t[key]["n"].to_list() == [1, 3]
    pytest.importorskip("pyarrow.compute")
    data = pyarrow.table(columns)
    t = df.table(data)
    for key in (slice(0, 2), 0):
        assert t[key] == data[key]
    for key in (pyarrow.array([True, False, True]), pyarrow.compute.field("n") != 2):
        assert t[key]["n"].to_pylist() == [1, 3]


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow", "dict"])
def test_new_columns_are_of_any_values(library):
    make, plain = (
        of_library(library) if library != "pandas" else (pandas.DataFrame, lambda found: found.to_dict("list"))
    )
    t = df.table(make({"g": ["x", "y", "x"], "n": [1, 2, 3]}))
    texts = numpy.array(["a", "b", "c"])
    assert plain(t.assign(m=texts).groupby("m")[["n"]].count())["n"] == [1, 1, 1]
    assert list(plain(t.assign(m=texts).groupby("g").sum())["m"]) == ["ac", "b"]
    assert plain(t.assign(m=b"ab").collect())["m"] == [b"ab"] * 3
    found = plain(t[t.n > 1].assign(a=["u", "v"], b=t.n, c=lambda t: t.b * 2, d=t.g).collect())
    assert (found["a"], found["b"], found["c"], found["d"]) == (["u", "v"], [2, 3], [4, 6], ["y", "x"])


def test_expressions_are_no_columns():
    polars = pytest.importorskip("polars")
    with pytest.raises(DovetailError, match=r"the new column 'y' must be made of values .* got the expression"):
        df.table(polars.DataFrame({"x": [1]})).assign(y=polars.col("x") * 2)


def test_texts_of_a_dict_may_be_missing():
    t = df.table({"s": numpy.array(["a", None, "a"], object), "n": [1, 2, 3]})
    assert t[t.s == "a"].n.sum() == t[t.s.isin(["a"])].n.sum() == 4
    for key in ("s", t.s):
        found = t.groupby(key)[["n"]].sum()
        assert list(found) == ["s", "n"]
        assert found["n"].tolist() == [4, 2]


@pytest.mark.parametrize("late", [[], ["late", "later than all that came"]])
def test_texts_are_numbered_alike_wherever_they_come_first(late):
    generator = numpy.random.default_rng(0)
    texts = generator.choice(["mid", "z", "a text of more than eight bytes", ""], 300_000).tolist() + late
    frame = pandas.DataFrame({"key": pandas.array(texts, dtype="str"), "n": numpy.arange(len(texts))})
    t = df.table(frame)
    pandas.testing.assert_frame_equal(t.groupby("key")[["n"]].sum(), frame.groupby("key")[["n"]].sum())
    assert list(t.key.unique()) == list(frame.key.unique())
    assert len(t[t.key == "late"]) == texts.count("late")
