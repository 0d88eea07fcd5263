"""Tables escape, sort by numbers, and say what they leave out."""

import math

import pytest

from dovetail.metrics.comparison import Comparison
from dovetail.store import Point, Store
from dovetail.vocabulary import Rejection, read_event
from dovetail.web import tables
from dovetail.web.report_data import read
from tests.web.synthetic import fill_many, fill_sweep, make_task


@pytest.fixture
def store():
    with Store(None, write=True) as opened:
        yield opened


def test_parameters_that_differ_are_in_rows_and_others_above(store: Store):
    store.add(tasks=[("w", make_task("a", width=1, seed=0)), ("w", make_task("b", width=2, seed=0))])
    made = tables.task_table(read(store))
    assert "The same for all: seed=0" in made
    assert "width=1" in made
    assert made.count("seed=0") == 1


def test_a_single_task_shows_all_of_them(store: Store):
    store.add(tasks=[("w", make_task("a", width=1))])
    assert "<small>width=1</small>" in tables.task_table(read(store))


def test_names_reasons_and_metrics_are_escaped(store: Store):
    task = make_task("<i>a", note="<u>")
    failed = read_event("failed", task=task.identity, at_seconds=1.0, data={"reason": "<s>bad"})
    point = Point(task=task.identity, name="<b>loss", step=1, value=0.5, at_seconds=1.0)
    store.add(tasks=[("w", task)], events=[failed], points=[point])
    made = tables.task_table(read(store))
    for raw in ("<i>", "<u>", "<s>", "<b>loss"):
        assert raw not in made
    for escaped in ("&lt;i&gt;a", "&lt;u&gt;", "&lt;s&gt;bad", "&lt;b&gt;loss"):
        assert escaped in made


def test_nan_is_shown_and_sorts_as_empty(store: Store):
    task = make_task("a")
    store.add(
        tasks=[("w", task)], points=[Point(task=task.identity, name="loss", step=1, value=math.nan, at_seconds=1)]
    )
    assert '<td class="number" data-sort=""><span class="bad">nan</span></td>' in tables.task_table(read(store))


def test_a_long_table_keeps_the_telling_rows(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tables, "MOST_ROWS", 5)
    fill_many(store, count=20)
    bad = make_task("bad")
    store.add(tasks=[("many", bad)], events=[read_event("failed", task=bad.identity, at_seconds=1.0)])
    made = tables.task_table(read(store))
    assert made.count("<tr>") == 6
    assert "<b>bad</b>" in made
    assert "Shown are 5 of 21 tasks" in made


def test_rejections_name_the_tasks_of_their_families(store: Store):
    fill_sweep(store)
    rejection = Rejection(families=("family9", "none"), technique="fuse", kind="h100", count=2, reason="<no>")
    made = tables.rejection_table(read(store), [rejection])
    assert "charlm-w1024-lr0.01, none" in made
    assert "2 × h100" in made
    assert "&lt;no&gt;" in made


def test_targets_that_were_not_reached_come_last(store: Store):
    fill_sweep(store)
    made = tables.target_table(read(store))
    assert made.count("not reached") == 3
    assert made.index("not reached") > made.index("charlm-w1024-lr0.01<")


def test_comparisons_are_worst_first(store: Store):
    fill_sweep(store)
    made = read(store)
    worst = max(made.comparison.spans, key=lambda span: abs(math.log(span.ratio)))
    first = tables.comparison_table(made).split("<tr>")[2]
    assert made.name(worst.task) in first
    assert f"{worst.ratio:.2f}" in first


def test_nothing_is_excluded_silently():
    assert tables.excluded_note(Comparison()) == ""
    assert "3 without a prediction" in tables.excluded_note(Comparison(unpredicted=3))
