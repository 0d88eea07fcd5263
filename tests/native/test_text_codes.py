"""Texts are numbered as pandas numbers them, wherever they lie; what is not text is left to others."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.native import text_codes
from dovetail.native.text_codes import code_arrow_text, code_text
from dovetail.watch.columns import factorize

pytestmark = pytest.mark.skipif(text_codes._kernel() is None, reason="needs a C compiler")
WORDS = st.one_of(st.none(), st.text(max_size=40).filter(lambda text: text.isascii() or "\ud800" not in text))


@pytest.fixture(autouse=True)
def few_rows_are_many(monkeypatch):
    monkeypatch.setattr(text_codes, "_MANY_ROWS", 1)


def forms(words):
    objects = np.array(words, dtype=object)
    narrow, wide = pa.array(words, pa.string()), pa.array(words, pa.large_string())
    chunks = pa.chunked_array([narrow[:1], narrow[1:]])
    return {
        "objects": objects,
        "narrow": narrow,
        "wide": wide,
        "chunks": chunks,
        "pandas": pd.array(words, dtype="string"),
    }


@settings(deadline=None, max_examples=60)
@given(words=st.lists(st.one_of(WORDS, st.sampled_from(["", "a", "ab", "abcd", "abcdefgh", "abcdefghi"])), min_size=1))
def test_texts_are_numbered_as_pandas_numbers_them(words):
    words = ["first", *words]
    places, distinct = pd.factorize(np.array(words, dtype=object))
    for form, column in forms(words).items():
        found = code_text(column)
        assert found is not None, form
        assert np.array_equal(found[0], places), form
        assert found[1] == distinct.tolist(), form


def test_a_part_of_a_column_is_numbered_for_itself():
    column = pa.array(["a", None, "b", "c", "b"] * 10, pa.string())[2:9]
    places, distinct = code_text(column)
    assert (places.tolist(), distinct) == ([0, 1, 0, 2, -1, 0, 1], ["b", "c", "a"])


def test_more_distinct_texts_than_the_table_began_with():
    words = [f"a text of its own {number}" for number in range(30_000)] * 2
    places, distinct = code_text(np.array(words, dtype=object))
    assert distinct == words[:30_000]
    assert np.array_equal(places, np.tile(np.arange(30_000), 2))


@pytest.mark.parametrize("words", [["a", 1], ["a", float("nan")], ["a", b"a"], ["a", "\ud800"]])
def test_what_is_not_text_is_left_to_others(words):
    assert code_text(np.array(words, dtype=object)) is None


def test_a_mixed_column_is_refused_as_before():
    with pytest.raises(Exception, match="values of an attribute must be of one type; 'region' has numbers and text"):
        factorize(np.array(["eu", 1], dtype=object), "region")


@pytest.mark.parametrize("width", [pa.string(), pa.large_string()])
def test_known_texts_have_the_first_places_whether_they_come_or_not(width):
    known = ["", "in", "longer than a word of eight bytes"]
    texts = ["us", known[2], "us", "", "another that is longer than eight", "in"]
    found, labels = code_arrow_text(pa.array(texts, width), known=known)
    assert labels == [*known, "us", "another that is longer than eight"]
    assert [labels[place] for place in found] == texts
