"""The experiment part of the report: labels, groups, ranges, rankings, and what its script draws of them."""

import json
import math
import shutil
import subprocess
from pathlib import Path

import pytest

import dovetail.web
from dovetail.store import Point, Store
from dovetail.vocabulary import read_event
from dovetail.web import charts, experiment
from dovetail.web.report import write_report
from dovetail.web.report_data import read
from tests.web.synthetic import make_task

# As much of a browser as the script touches; what plotly.js is asked to draw is printed.
BROWSER = """
const fs = require("fs");
const [script, data, ids, checked, weight, picks] = [process.argv[2], process.argv[3], ...JSON.parse(process.argv[4])];
const elements = Object.fromEntries(ids.map((id) => [id, {
  value: id === "smoothing" ? weight : "0", checked: checked.includes(id), clientWidth: 900,
  addEventListener() {}, on(name, handler) { this[name] = handler; },
}]));
elements.data = { textContent: fs.readFileSync(data, "utf8") };
globalThis.document = {
  getElementById: (id) => elements[id] ?? null,
  querySelector: (name) => ({ value: name.includes("over") ? "steps" : "first" }),
  querySelectorAll: () => [], documentElement: {}, body: {},
};
globalThis.getComputedStyle = () => ({ getPropertyValue: () => "#123456", fontFamily: "sans" });
globalThis.matchMedia = () => ({ addEventListener() {} });
const drawn = {};
globalThis.Plotly = { react: (id, traces, layout) => { drawn[id] = { traces, layout }; } };
eval(fs.readFileSync(script, "utf8"));
for (const points of picks) elements["parallel-chart"].plotly_selected({ points });
console.log(JSON.stringify(drawn));
"""


@pytest.fixture
def store():
    """Two rates with three seeds each, and one task that ran away."""
    with Store(None, write=True) as opened:
        for number, (rate, seed) in enumerate([(r, s) for r in (0.001, 0.1) for s in range(3)] + [(9.0, 0)]):
            name = f"net depth=2 kind={'slow' if rate < 0.01 else 'fast'} rate={rate:g} seed={seed}"
            task = make_task(name, rate=rate, seed=seed, depth=2, kind="slow" if rate < 0.01 else "fast")
            scale = 1e9 if rate > 1 else 1.0
            points = [
                Point(task=task.identity, name="loss", step=step, value=scale * (number + 1) / step, at_seconds=step)
                for step in (1, 2, 4)
            ]
            event = read_event("finished", task=task.identity, attempt=1, at_seconds=9.0, data={"step": 4})
            opened.add(tasks=[("w", task)], points=points, events=[event])
        yield opened


def test_labels_keep_what_differs_and_nothing_else(store):
    labels = list(experiment.labels_of(read(store)).values())
    assert labels[0] == "kind=slow rate=0.001 seed=0"
    assert experiment.distinct_words(["same", "same"]) == ["same", "same"]
    assert experiment.distinct_words(["a", "a b"]) == ["a", "a b"]  # else one of them would have no name


def test_tasks_that_differ_in_their_seed_alone_are_one_group(store):
    groups = list(experiment.seed_groups(read(store)).values())
    assert groups == ["kind=slow rate=0.001"] * 3 + ["kind=fast rate=0.1"] * 3 + ["kind=fast rate=9"]


def test_a_runaway_does_not_set_the_scale(store):
    (metric,) = read(store).metrics
    low, high = experiment.robust_range(metric)
    assert 0 < high < 10
    assert low < 1 / 4
    calm = [curve for curve in charts.curve_data(read(store))[0]["curves"] if max(curve["values"]) < 100]
    assert len(calm) == 6


def test_without_a_runaway_there_is_no_range():
    with Store(None, write=True) as opened:
        for seed in range(6):
            task = make_task(f"net seed={seed}", seed=seed)
            opened.add(
                tasks=[("w", task)], points=[Point(task=task.identity, name="x", step=1, value=seed, at_seconds=1)]
            )
        assert experiment.robust_range(read(opened).metrics[0]) is None


def test_outcomes_have_the_parameters_that_vary_and_the_best_values(store):
    found = experiment.outcomes(read(store))
    assert found["parameters"] == ["rate", "kind", "seed"]
    assert found["metrics"] == [{"name": "loss", "goal": "min"}]
    assert found["tasks"][1]["given"] == [0.001, "slow", 1]
    assert found["tasks"][1]["came"] == [0.5]


def test_the_ranking_has_a_column_for_each_parameter_and_the_best_first(store):
    markup = experiment.ranking(read(store))
    for name in ("Rank", "loss", "rate", "seed", "kind"):
        assert f"<button>{name}</button>" in markup
    assert markup.index("kind=slow rate=0.001 seed=0") < markup.index("kind=slow rate=0.001 seed=1")
    assert "smallest first" in markup


def drawn(store, folder, *, checked=(), weight=0.0, picks=()):
    page = write_report(store, folder / "report.html").read_text()
    for anchor in ('id="outcome"', 'id="parameter"', 'id="smoothing"', 'id="bands"', 'id="robust"', "Ranking"):
        assert anchor in page
    text = page.split('<script type="application/json" id="data">')[1].split("</script>")[0]
    (folder / "data.json").write_text(text)
    (folder / "browser.js").write_text(BROWSER)
    script = Path(dovetail.web.__file__).with_name("report.js")
    ids = ["metric", "logarithmic", "smoothing", "bands", "robust", "outcome", "parameter", "curves-chart"]
    ids += ["parallel-chart"]
    settings = json.dumps([ids, list(checked), str(weight), list(picks)])
    command = ["node", str(folder / "browser.js"), str(script), str(folder / "data.json"), settings]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs node to run the page's script")


@needs_node
def test_every_curve_smoothed_and_on_a_robust_scale(store, tmp_path):
    plain = drawn(store, tmp_path, checked=["robust"])["curves-chart"]
    assert plain["traces"][0]["y"] == [1.0, 0.5, 0.25]
    assert plain["layout"]["yaxis"]["range"][1] < 10
    free = drawn(store, tmp_path, weight=0.5)["curves-chart"]
    assert free["layout"]["yaxis"]["autorange"]
    smooth = free["traces"][0]["y"]
    assert smooth[0] == 1.0
    assert 0.5 < smooth[1] < 1.0


@needs_node
def test_seeds_as_bands(store, tmp_path):
    traces = drawn(store, tmp_path, checked=["bands"])["curves-chart"]["traces"]
    assert len(traces) == 3 + 3 + 1  # two bands of two edges and a mean, and one task alone
    low, high, mean = traces[:3]
    assert (low["y"][0], mean["y"][0], high["y"][0]) == (1.0, 2.0, 3.0)
    assert high["fill"] == "tonexty"
    assert mean["name"] == "kind=slow rate=0.001 (3)"


@needs_node
def test_a_metric_against_a_parameter_and_all_parameters_at_once(store, tmp_path):
    found = drawn(store, tmp_path)
    against = found["against-chart"]
    assert against["traces"][0]["x"] == [0.001] * 3 + [0.1] * 3 + [9]
    assert against["layout"]["xaxis"]["type"] == "log"
    parallel = found["parallel-chart"]
    assert parallel["layout"]["xaxis"]["ticktext"] == ["rate", "kind", "seed", "loss"]
    labels = {(each["x"], each["text"]): each["y"] for each in parallel["layout"]["annotations"]}
    assert (labels[0, "0.001"], labels[0, "9"]) == (0, 1)
    assert labels[0, "0.1"] == pytest.approx(math.log(100) / math.log(9000))
    assert (labels[1, "fast"], labels[1, "slow"]) == (0, 1)


@needs_node
def test_all_parameters_are_drawn_without_what_the_pages_policy_forbids(store, tmp_path):
    """Plotly's own parallel coordinates make code from text, which no browser does under this page's policy."""
    traces = drawn(store, tmp_path)["parallel-chart"]["traces"]
    assert {trace["type"] for trace in traces} == {"scatter"}
    lines = [number for trace in traces for number in trace["customdata"] if number is not None]
    assert sorted(lines) == sorted([*range(7)] * 4)  # each task on each of the four axes
    best = traces[-1]  # on top
    assert best["line"]["color"] == "rgb(0,114,178)"
    assert min(share for share in best["y"] if share is not None) < 0.05
    policy = (tmp_path / "report.html").read_text().split("Content-Security-Policy")[1].split(">")[0]
    assert "unsafe-eval" not in policy


@needs_node
def test_dragging_over_an_axis_keeps_the_tasks_that_pass_there_and_again_fewer(store, tmp_path):
    picks = [[{"x": 1, "customdata": n} for n in range(4)], [{"x": 3, "customdata": n} for n in (2, 3, 6)]]
    left, *kept = drawn(store, tmp_path, picks=picks)["parallel-chart"]["traces"]
    assert left["mode"] == "lines"
    assert {n for n in left["customdata"] if n is not None} == {0, 1, 4, 5, 6}
    assert {n for trace in kept for n in trace["customdata"] if n is not None} == {2, 3}
