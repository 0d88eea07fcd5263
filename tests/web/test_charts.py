"""Figures are ones plotly knows, and show what was planned and what ran."""

import json

import plotly.graph_objects as go
import pytest

from dovetail.store import Point, Store
from dovetail.web import charts
from dovetail.web.report_data import read
from tests.web.synthetic import fill_anew, fill_many, fill_sweep, make_task


@pytest.fixture
def store():
    with Store(None, write=True) as opened:
        yield opened


def test_figures_pass_plotly_s_own_checks(store: Store):
    fill_sweep(store)
    figure, notes = charts.gantt(read(store))
    assert notes == []
    go.Figure(figure)
    go.Figure(charts.predictions(read(store)))


def test_every_placement_is_on_each_of_its_devices(store: Store):
    fill_sweep(store)
    made = read(store)
    figure, _ = charts.gantt(made)
    for kind, bars in {**made.planned, "measured": made.measured}.items():
        drawn = sum(len(trace["x"]) for trace in figure["data"] if trace["meta"] == kind)
        assert drawn == sum(len(bar.devices) for bar in bars)


def test_bars_start_and_last_as_measured(store: Store):
    fill_sweep(store)
    made = read(store)
    figure, _ = charts.gantt(made)
    drawn = {
        (round(base * 60, 1), round(x * 60, 1))
        for trace in figure["data"]
        if trace["meta"] == "measured"
        for base, x in zip(trace["base"], trace["x"], strict=True)
    }
    assert drawn == {
        (round(bar.start_seconds - made.origin_seconds, 1), round(bar.seconds, 1)) for bar in made.measured
    }


def test_earlier_attempts_of_tasks_begun_anew_lie_left_of_what_is_shown_first(store: Store):
    tasks = fill_anew(store)
    figure, notes = charts.gantt(read(store))
    measured = [trace for trace in figure["data"] if trace["meta"] == "measured"]
    bases = sorted(base for trace in measured for base in trace["base"])
    assert bases == [-9999.0, -9999.0, 1.0, 1.0]
    assert {trace.get("opacity") for trace in measured if trace["base"][0] < 0} == {0.45}
    assert "before it began anew" in next(trace["hovertext"][0] for trace in measured if trace["base"][0] < 0)
    assert figure["layout"]["xaxis"]["range"] == [0.0, 51.0]
    assert figure["layout"]["xaxis"]["title"]["text"] == "seconds since the first plan after all was begun anew"
    assert notes == ["Left of 0 lie 2 earlier placements: double-click the chart to see them."]
    (curve,) = charts.curve_data(read(store))[0]["curves"]
    assert curve["name"] == tasks[0].name
    assert (curve["trained"], curve["wall"]) == ([10.0, 30.0], [11.0, 31.0])


def test_nothing_to_draw(store: Store):
    assert charts.gantt(read(store)) == (None, [])
    assert charts.curve_data(read(store)) == []
    assert charts.predictions(read(store)) is None


def test_what_is_left_out_is_said(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(charts, "MOST_BARS", 10)
    monkeypatch.setattr(charts, "MOST_DEVICES", 4)
    fill_many(store, count=40)
    figure, notes = charts.gantt(read(store))
    assert sum(len(trace["x"]) for trace in figure["data"]) == 10
    assert notes == [
        "Of 8 devices the first 4 that were used are drawn.",
        "Of 20 measured bars the first 10 are drawn.",
    ]


def test_values_that_are_not_finite_are_gaps(store: Store):
    task = make_task("a")
    values = [1.0, float("nan"), float("inf"), 0.5]
    points = [Point(task=task.identity, name="loss", step=n, value=v, at_seconds=n) for n, v in enumerate(values)]
    store.add(tasks=[("w", task)], points=points)
    (metric,) = charts.curve_data(read(store))
    assert metric["curves"][0]["values"] == [1.0, None, None, 0.5]
    json.dumps(metric, allow_nan=False)


def test_curves_are_over_steps_training_and_wall_time(store: Store):
    fill_sweep(store)
    (loss, _) = charts.curve_data(read(store))
    lost = next(curve for curve in loss["curves"] if curve["name"] == "charlm-w512-lr0.01")
    assert lost["steps"][0] == 5
    assert lost["wall"] == sorted(lost["wall"])
    assert 0 < lost["trained"][-1] < lost["wall"][-1]


def test_names_cannot_be_markup_in_a_chart():
    assert charts.label('<a href="x">\'') == '&lt;a href="x"&gt;\''
    assert len(charts.label("x" * 500)) <= 49
