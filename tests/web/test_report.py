"""The report is one file that needs nothing else, holds everything, and runs nothing of the user's."""

import base64
import hashlib
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dovetail.store import Point, Store
from dovetail.vocabulary import Allocation, DovetailError, Plan, Rejection, Schedule, read_event
from dovetail.web import report, write_report
from tests.web.synthetic import fill_many, fill_sweep, make_task

NASTY = "<script>alert(1)<\u2215script><img src=x onerror=alert(1)>\"'&"
WITHOUT_DATA_BYTES = 1_500_000


class Page(HTMLParser):
    """Collects what a browser would see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[str | None, str]] = []
        self._script: str | bool | None = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._script = dict(attrs).get("type") if tag == "script" else False

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._script = False

    def handle_data(self, data: str) -> None:
        if self._script is not False:
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


def test_it_holds_the_sweep(store: Store, tmp_path: Path):
    tasks = fill_sweep(store)
    data = write(store, tmp_path)[1].data
    assert data["title"] == "sweep"
    assert [row["name"] for row in data["snapshot"]["tasks"]] == [task.name for task in tasks]
    assert data["plans"].keys() == {"1", "2"}
    assert len(data["curves"]) == 11
    assert data["details"].keys() == {task.identity for task in tasks}
    said = json.dumps(data)
    for words in (
        "the worker fell silent for 30 s",
        "91.2 GiB",
        "the loss must stay finite",
        "the fastest that leaves",
    ):
        assert words in said


def test_it_loads_nothing(store: Store, tmp_path: Path):
    fill_sweep(store)
    text, page = write(store, tmp_path)
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "img", "object", "embed", "base", "form")
        assert not {"src", "srcset", "action", "data"} & attributes.keys()
        assert (attributes.get("href") or "#").startswith("#")
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg|github\.com/leeoniya)[\w.]+", text)
    assert "@import" not in text
    assert "url(" not in text


def test_only_its_own_scripts_and_styles_count(store: Store, tmp_path: Path):
    fill_sweep(store)
    text, page = write(store, tmp_path)
    policy = next(attributes["content"] for _, attributes in page.tags if "http-equiv" in attributes)
    inside = re.findall(r"<(?:script|style)>(.*?)</(?:script|style)>", text, flags=re.DOTALL)
    digests = {base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in inside}
    assert set(re.findall(r"'sha256-([^']+)'", policy or "")) == digests
    assert len(inside) == 3
    assert "default-src 'none'" in (policy or "")
    assert "unsafe" not in (policy or "")


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
    assert page.data["snapshot"]["tasks"][0]["name"] == NASTY  # put in as text by the page


def test_secrets_are_not_in_the_file(store: Store, tmp_path: Path):
    fill_sweep(store)
    assert "hf_verysecret" not in write(store, tmp_path)[0]


def test_an_empty_store_makes_a_small_page(store: Store, tmp_path: Path):
    text, page = write(store, tmp_path)
    assert page.data["title"] == "nothing yet"
    assert len(text.encode()) < WITHOUT_DATA_BYTES


def test_a_plan_that_has_not_started_is_shown(store: Store, tmp_path: Path):
    fill_sweep(store)
    with Store(None, write=True) as fresh:
        fresh.add(tasks=store.tasks())
        for _, at, plan in store.plans()[:1]:
            fresh.add_plan(plan, workload="sweep", at_seconds=at)
        data = write(fresh, tmp_path)[1].data
    assert len(data["plans"]["1"]["placements"]) == 10
    assert data["snapshot"]["plans"][0][2] == pytest.approx(698.0)


def test_shares_of_time_are_told(store: Store, tmp_path: Path):
    store.add(tasks=[("w", make_task("a"))])
    store.add_plan(Plan(allocation=Allocation(shares=())), workload="w", at_seconds=0.0)
    assert write(store, tmp_path)[1].data["plans"]["1"]["shares"] == []
    store.add_plan(Plan(schedule=Schedule(placements=())), workload="w", at_seconds=0.0)
    assert write(store, tmp_path)[1].data["plans"].keys() == {"1", "2"}


def test_thousands_of_tasks_keep_the_best_curves(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(report, "MOST_CURVES", 5)
    fill_many(store, count=300)
    data = write(store, tmp_path)[1].data
    names = {row["id"]: row["name"] for row in data["snapshot"]["tasks"]}
    assert sorted(names[task] for task in data["curves"]) == [f"many-{n:05d}" for n in range(5)]
    assert len(names) == 300


def test_an_unknown_workload_is_refused_with_the_known_ones(store: Store, tmp_path: Path):
    fill_sweep(store)
    with pytest.raises(DovetailError, match=r"\['sweep'\], got 'swep'"):
        write(store, tmp_path, workload="swep")


def test_a_page_that_cannot_be_written_is_refused(store: Store, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DovetailError, match="must be written to a file this user can write"):
        write_report(store, tmp_path / "file" / "report.html")


def test_writing_loads_neither_server_nor_torch():
    code = "import sys, dovetail.web; assert not {'starlette', 'uvicorn', 'tensorboard', 'torch'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
