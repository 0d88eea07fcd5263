"""The report is one file that needs nothing else, shows everything, and runs nothing of the user's."""

import base64
import hashlib
import html
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dovetail.store import Point, Store
from dovetail.vocabulary import Allocation, DovetailError, FrozenDict, Plan, Rejection, Schedule, read_event
from dovetail.vocabulary.events import DevicesReleased
from dovetail.web import write_report
from dovetail.web.report import _plotly
from tests.web.synthetic import fill_many, fill_sweep, make_task

NASTY = "<script>alert(1)<\u2215script><img src=x onerror=alert(1)>\"'&"


class Page(HTMLParser):
    """Collects what a browser would see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[str | None, str]] = []
        self.text = ""
        self._script: str | bool | None = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._script = dict(attrs).get("type") if tag == "script" else False

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._script = False

    def handle_data(self, data: str) -> None:
        if self._script is False:
            self.text += data
        else:
            self.scripts.append((self._script, data))  # type: ignore[arg-type]

    @property
    def data(self) -> dict:
        return json.loads("".join(text for kind, text in self.scripts if kind == "application/json"))


@pytest.fixture
def store():
    with Store(None, write=True) as opened:
        yield opened


def write(store: Store, folder: Path, workload: str | None = None) -> tuple[str, Page]:
    path = write_report(store, folder / "deep" / "report.html", workload=workload)
    text = path.read_text(encoding="utf-8")
    return text, Page(text)


def test_it_shows_the_sweep(store: Store, tmp_path: Path):
    tasks = fill_sweep(store)
    _, page = write(store, tmp_path)
    for task in tasks:
        assert task.name in page.text
    for words in (
        "Schedule", "Curves", "Tasks", "Time to target", "Prediction and measurement", "Why this plan",
        "What does not fit", "Warnings and failures", "the worker fell silent for 30 s", "91.2 GiB",
        "the loss must stay finite", "batches are 20 % of each step", "of 12 tasks", "11 min 38 s", "n0: 4 × h100",
    ):  # fmt: skip
        assert words in page.text
    assert [metric["name"] for metric in page.data["metrics"]] == ["loss", "accuracy"]
    assert page.data["gantt"]
    assert page.data["predictions"]


def test_it_accounts_for_every_second(store: Store, tmp_path: Path):
    fill_sweep(store)
    assert "Where the time went" not in write(store, tmp_path)[1].text, "a store of before says nothing of it"
    at = max(event.at_seconds for _, event in store.events())
    order = {"placement": "p", "purpose": "train", "devices": ("n0:0",), "duration_seconds": 40.0}
    store.add(events=[DevicesReleased(at_seconds=at, seconds=FrozenDict({"step": 30.0, "saving": 10.0}), **order)])
    _, page = write(store, tmp_path)
    for words in ("Where the time went", "steps of tasks", "checkpoints written", "pauses between runs left out"):
        assert words in page.text


def test_it_loads_nothing(store: Store, tmp_path: Path):
    fill_sweep(store)
    text, page = write(store, tmp_path)
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "img", "object", "embed", "base", "form")
        assert not {"src", "srcset", "action", "data"} & attributes.keys()
        assert (attributes.get("href") or "#").startswith("#")
    # Whatever plotly.js holds, the page around it has no address in it at all.
    around = text.replace(_plotly(), "")
    assert "http://" not in around
    assert "https://" not in around
    assert "@import" not in around
    assert "url(" not in around


def test_plotly_is_inside_once_and_cannot_upload(store: Store, tmp_path: Path):
    fill_sweep(store)
    text, _ = write(store, tmp_path)
    assert text.count(_plotly()) == 1
    assert "showSendToCloud: false" in text


def test_only_its_own_scripts_may_run(store: Store, tmp_path: Path):
    fill_sweep(store)
    text, page = write(store, tmp_path)
    policy = next(attributes["content"] for tag, attributes in page.tags if "http-equiv" in attributes)
    executed = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    digests = {base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in executed}
    assert set(re.findall(r"'sha256-([^']+)'", policy or "")) == digests
    assert len(executed) == 2
    assert "default-src 'none'" in (policy or "")
    assert "unsafe-inline" not in (policy or "").split("script-src")[1].split(";")[0]


def test_nothing_of_the_user_is_markup(store: Store, tmp_path: Path):
    task = make_task(NASTY, note=NASTY)
    points = [Point(task=task.identity, name=NASTY, step=1, value=0.5, at_seconds=2.0)]
    data = {
        "placement": NASTY, "devices": [NASTY], "step": 0, "until": 500, "predicted_seconds": 5.0,
        "option": {"technique": NASTY, "families": [NASTY], "kind": NASTY, "count": 1, "step_seconds": [1.0]},
    }  # fmt: skip
    events = [
        read_event("started", task=task.identity, attempt=1, at_seconds=1.0, data=data),
        read_event("failed", task=task.identity, attempt=1, at_seconds=9.0, data={"reason": NASTY, "log": NASTY}),
        read_event("warned", at_seconds=9.0, data={"message": NASTY + "</script>"}),
    ]
    rejection = Rejection(families=(NASTY,), technique=NASTY, kind=NASTY, count=1, reason=NASTY)
    store.add(tasks=[(NASTY, task)], points=points, events=events)
    store.add_plan(Plan(rejections=(rejection,), explanation=(NASTY,)), workload=NASTY, at_seconds=0.0)
    text, page = write(store, tmp_path, workload=NASTY)
    assert sum(tag == "script" for tag, _ in page.tags) == 3
    assert not any(tag == "img" for tag, _ in page.tags)
    assert not any(key.startswith("on") for _, attributes in page.tags for key in attributes)
    assert "<script>alert" not in text
    assert html.escape(NASTY) in text
    assert page.data["metrics"][0]["name"] == NASTY  # put in as text by report.js
    assert "<img" not in json.dumps(page.data["gantt"])


def test_secrets_are_not_in_the_file(store: Store, tmp_path: Path):
    fill_sweep(store)
    text, page = write(store, tmp_path)
    assert "hf_verysecret" not in text
    assert "api_key=***" in page.text


def test_an_empty_store_makes_a_page(store: Store, tmp_path: Path):
    _, page = write(store, tmp_path)
    assert "nothing yet" in page.text
    assert "No task has been described yet." in page.text
    assert page.data == {"gantt": None, "metrics": [], "outcomes": None, "predictions": None}


def test_a_plan_that_has_not_started_is_shown(store: Store, tmp_path: Path):
    fill_sweep(store)
    with Store(None, write=True) as fresh:
        fresh.add(tasks=store.tasks())
        for _, at, plan in store.plans()[:1]:
            fresh.add_plan(plan, workload="sweep", at_seconds=at)
        _, page = write(fresh, tmp_path)
    assert {trace["meta"] for trace in page.data["gantt"]["data"]} == {"first"}
    assert "nothing has run yet" in page.text
    assert "Nothing to compare yet." in page.text


def test_why_a_plan_is_as_it_is_names_tasks(store: Store, tmp_path: Path):
    one = make_task("learning rate of 0.1")
    plan = Plan(schedule=Schedule(placements=()), explanation=(f"{one.identity} and 2 more: resident on 1 × cpu",))
    store.add(tasks=[("w", one)])
    store.add_plan(plan, workload="w", at_seconds=1.0)
    text, page = write(store, tmp_path)
    assert "learning rate of 0.1 and 2 more: resident on 1 × cpu" in page.text
    assert f"{one.identity} and 2 more" not in text


def test_an_allocation_has_no_bars(store: Store, tmp_path: Path):
    store.add(tasks=[("w", make_task("a"))])
    store.add_plan(Plan(allocation=Allocation(shares=()), explanation=("why",)), workload="w", at_seconds=0.0)
    _, page = write(store, tmp_path)
    assert page.data["gantt"] is None
    assert "why" in page.text


def test_many_tasks_are_capped_and_said_so(store: Store, tmp_path: Path):
    fill_many(store, count=1200)
    text, page = write(store, tmp_path)
    assert len(page.data["metrics"][0]["curves"]) == 200
    assert "Of 1,200 tasks, the 200 with the best values are drawn." in page.text
    assert "Shown are 1,000 of 1,200 tasks" in page.text
    assert len(text) - len(_plotly()) < 2_000_000


def test_logs_that_are_not_text_do_not_stop_it(store: Store, tmp_path: Path):
    task = make_task("a")
    log = b"caf\xe9 \x00".decode("utf-8", "surrogateescape")
    store.add(tasks=[("w", task)], events=[read_event("lost", task=task.identity, at_seconds=1.0, data={"log": log})])
    text, _ = write(store, tmp_path)
    assert "caf?" in text


def test_a_path_that_cannot_be_written_is_said(store: Store, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DovetailError, match="must be written to a file this user can write"):
        write_report(store, tmp_path / "file" / "report.html")


def test_importing_it_is_quick():
    code = "import sys, dovetail.web; assert not {'plotly', 'tensorboard', 'torch'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
