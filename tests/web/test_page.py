"""Every view in a real browser: shown, steered, linked to, downloaded, and never fooled by what users wrote."""

import math
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dovetail.store import Point, Store
from dovetail.vocabulary import read_event
from dovetail.vocabulary.events import DevicesReleased, TaskFailed, TaskFinished
from tests.web.browser import PHONE, VIEWS, Sight, serving
from tests.web.synthetic import START, fill_many, fill_sweep, make_task
from tests.web.test_timetable_charts import fill as fill_pipeline

pytestmark = pytest.mark.process
Look = Callable[..., Sight]

NASTY = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'<\u2215script>"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("sweep") / "store"
    with Store(home, write=True) as store:
        fill_sweep(store)
    return home


@pytest.fixture(scope="module")
def address(sweep: Path) -> Iterator[str]:
    with serving(sweep, options=("--port", "7500")) as found:
        yield found


EXPECTED = {
    "overview": ("Finished\n9", "Look at these first", "the loss was nan at step 361", "Warnings and failures"),
    "schedule": ("Plan 2 of 2", "because a task failed", "What changed since plan 1", "What does not fit", "91.2 GiB"),
    "tasks": ("12 of 12 tasks", "charlm-w128-lr0.01", "✕ failed", "NaN"),
    "compare": ("All parameters at once", "Ranking", "What goes with it", "Time to target", "api_key=***"),
    "cluster": ("n0:3", "Queue", "80.0 GiB", "charlm-w1024-lr0.0003"),
    "pipeline": ("No task was planned as a pipeline",),
}


def test_every_view_is_shown(address: str, look: Look):
    sight = look(address).open()
    for view in VIEWS:
        sight.to(view)
        for words in EXPECTED[view]:
            sight.sees(words, within="main")
        assert sight.page.get_attribute("nav a[aria-current]", "href") == f"#/{view}"


def test_what_is_behind_failures_is_on_the_first_view(tmp_path: Path, look: Look):
    tasks = [make_task(f"t{n}", rate=(0.1, 0.9)[n % 2], words=NASTY if n % 4 else "plain") for n in range(40)]
    error = "task 't' raised KeyError: 'x'"
    ends = [
        TaskFailed(task=task.identity, attempt=1, at_seconds=START, reason=error, phase="training")
        if number % 2
        else TaskFinished(task=task.identity, attempt=1, at_seconds=START, step=1)
        for number, task in enumerate(tasks)
    ]
    with Store(tmp_path, write=True) as store:
        store.add(tasks=[("sweep", task) for task in tasks], events=ends)
    with serving(tmp_path) as found:
        sight = look(found).open()
        sight.sees("Why did tasks fail: KeyError in training?", within="main")
        sight.sees("rate = 0.9: 20 of 20 such failures, nowhere else", within="main")
        panel = sight.page.locator("main section").filter(has=sight.page.get_by_role("heading", name="Why", exact=True))
        assert panel.get_by_role("listitem").count() == 1
        assert sight.page.title() != "owned"


def test_the_token_leaves_the_address_and_a_link_shows_the_same_view(address: str, look: Look):
    sight = look(address).open("tasks")
    assert "token" not in sight.page.url
    sight.page.fill("input[type=search]", "width=512")
    sight.sees("3 of 12 tasks")
    sight.page.click("[role=columnheader] button:text('learning_rate')")
    sight.page.select_option("select[name=group]", "status")
    names = sight.page.locator(".rows .cell a").all_inner_texts()
    other = look(address).open()
    other.page.goto(sight.page.url)
    other.sees("3 of 12 tasks")
    assert other.page.locator(".rows .cell a").all_inner_texts() == names
    assert names == ["charlm-w512-lr0.0003", "charlm-w512-lr0.001", "charlm-w512-lr0.01"]


def test_tasks_are_filtered_sorted_grouped_and_compared(address: str, look: Look):
    sight = look(address).open("tasks")
    page = sight.page
    page.click("button:text('1 failed')")
    sight.sees("1 of 12 tasks")
    page.click("button:text('all 12')")
    page.click("[role=columnheader] button:text-is('loss')")
    assert page.get_attribute("[role=columnheader]:has(button:text-is('loss'))", "aria-sort") == "ascending"
    first = page.locator(".rows .cell a").first.inner_text()
    page.click("[role=columnheader] button:text-is('loss')")
    assert page.locator(".rows .cell a").first.inner_text() != first == "charlm-w1024-lr0.01"
    page.select_option("select[name=group]", "given:width")
    sight.sees("width = 128: 3 tasks")
    page.locator(".rows input[type=checkbox]").nth(0).check()
    page.locator(".rows input[type=checkbox]").nth(1).check()
    page.click("button:text('Compare 2')")
    sight.sees("The chosen 2 tasks").sees("Differences")


def test_a_task_is_shown_whole(address: str, look: Look, sweep: Path):
    sight = look(address).open("tasks")
    sight.page.click("a:text-is('charlm-w256-lr0.01')")
    for words in ("accuracy ≥ 0.58, at most 500 steps", "the loss was nan at step 361", "sweep.py:charlm", "***"):
        sight.sees(words, within="main")
    sight.page.click("summary:text('3 events')")
    sight.page.click("summary:text('End of the log')")
    sight.sees("TrainingError: the loss must stay finite")
    assert not sight.page.locator("button:text('Pause')").count(), "nothing runs that could be asked"


def test_the_schedule_zooms_pans_and_tells(address: str, look: Look):
    sight = look(address).open("schedule")
    sight.sees("Plan 2 of 2")
    canvas = sight.page.locator("canvas[tabindex]")
    box = canvas.bounding_box()
    sight.page.mouse.move(box["x"] + 140, box["y"] + 30)
    sight.sees("charlm-w128-lr0.01: 500 steps", within=".hint").sees("fuse on n0:0", within=".hint").sees("predicted")
    canvas.focus()
    for key in ("+", "+", "ArrowRight"):
        canvas.press(key)
    sight.page.wait_for_function("() => location.hash.includes('from=')")
    canvas.press("0")
    sight.page.wait_for_function("() => !location.hash.includes('from=')")
    sight.page.locator("input[name=plan]").fill("0")
    sight.sees("Plan 1 of 2").sees("because the run began")
    sight.page.mouse.click(box["x"] + 140, box["y"] + 30)
    sight.page.wait_for_function("() => location.hash.startsWith('#/task?')")


@pytest.mark.parametrize("view", ["overview", "schedule", "compare", "cluster", "task"])
def test_every_chart_downloads_as_svg_and_csv(address: str, look: Look, view: str, tmp_path: Path):
    sight = look(address).open(view, **({"id": make_sweep_task()} if view == "task" else {}))
    sight.page.wait_for_selector(".downloads button")
    sight.page.wait_for_timeout(800)
    canvases = sight.page.locator("main .chart").count()
    names = sight.page.locator(".downloads button").evaluate_all("all => all.map(each => each.ariaLabel)")
    assert len(names) == 2 * canvases
    for name in names:
        with sight.page.expect_download() as found:
            sight.page.click(f'button[aria-label="{name}"]')
        text = Path(found.value.path()).read_text()
        if name.endswith("SVG"):
            assert re.match(r'<svg xmlns="http://www.w3.org/2000/svg" width="\d', text)
            assert len(re.findall(r"<(?:rect|path|circle)", text)) > 5
        else:
            assert text.count("\n") > 4


def test_devices_are_drawn_as_they_were_measured(sweep: Path, tmp_path: Path, look: Look):
    home = tmp_path / "store"
    shutil.copytree(sweep, home)
    order = {"placement": "p", "devices": ("n0:0",), "duration_seconds": 300.0, "busy_seconds": 75.0}
    with Store(home, write=True) as store:
        store.add(events=[DevicesReleased(at_seconds=START + 400, held_bytes=7 << 30, **order)])
    with serving(home, options=("--port", "7590")) as found:
        sight = look(found).open("cluster")
        sight.page.wait_for_timeout(800)
        with sight.page.expect_download() as file:
            sight.page.click('.downloads button[aria-label$="CSV"]')
        rows = [
            line.split(",") for line in Path(file.value.path()).read_text().splitlines() if line.startswith("n0:0,")
        ]
    held = {(round(float(share), 3), int(size)) for _, _, share, size in rows}
    assert (0.25, 7 << 30) in held, "while it ran"
    assert (0.0, 0) in held, "before and after"


def make_sweep_task() -> str:
    given = {"width": 512, "learning_rate": 1e-2, "seed": 0, "api_key": "hf_verysecret"}
    return make_task("charlm-w512-lr0.01", target=0.58, **given).identity


def test_curves_follow_their_controls(address: str, look: Look):
    sight = look(address).open("compare", metric="loss")
    sight.sees("The best 11 tasks of 11")
    page = sight.page
    for box in ("log", "robust"):
        page.locator(f"input[name={box}]").set_checked(True, force=True)
    page.select_option("select[name=over]", "trained")
    page.locator("input[name=smoothing]").fill("0.6")
    page.wait_for_function("() => location.hash.includes('over=trained') && location.hash.includes('smoothing=0.6')")
    page.locator(".legend button").first.click()
    assert page.get_attribute(".legend button", "aria-pressed") == "false"
    page.locator("canvas[aria-label^='Parallel']").scroll_into_view_if_needed()
    box = page.locator("canvas[aria-label^='Parallel']").bounding_box()
    page.mouse.move(box["x"] + 70, box["y"] + 200)
    page.mouse.down()
    page.mouse.move(box["x"] + 70, box["y"] + 390, steps=4)
    page.mouse.up()
    sight.sees("Keep all tasks")


def test_light_and_dark_and_a_phone(address: str, look: Look):
    for scheme in ("light", "dark"):
        sight = look(address, viewport=PHONE, color_scheme=scheme, has_touch=True, is_mobile=True).open()
        for view in VIEWS:
            sight.to(view)
            sight.page.wait_for_timeout(300)
            wide = sight.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 1, f"{view} is {wide} dots too wide"
        background = sight.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", background)[:3])) < 200) == (scheme == "dark")


def test_the_keyboard_reaches_everything(address: str, look: Look):
    sight = look(address).open("tasks")
    sight.sees("12 of 12 tasks")
    reached = set()
    sight.page.locator("body").focus()
    for _ in range(60):
        sight.page.keyboard.press("Tab")
        reached.add(
            sight.page.evaluate("[document.activeElement.tagName, document.activeElement.name ?? ''].join(' ')")
        )
    assert {"A ", "BUTTON ", "INPUT search", "SELECT group"} <= {each.strip() or each for each in reached} | reached


def test_what_users_wrote_is_text(tmp_path: Path, look: Look):
    task = make_task(NASTY, note=NASTY)
    started = {
        "placement": "p", "devices": [NASTY], "step": 0, "until": 9, "predicted_seconds": 5.0,
        "option": {"technique": NASTY, "families": [NASTY], "kind": NASTY, "count": 1, "step_seconds": [1.0]},
    }  # fmt: skip
    events = [
        read_event("started", task=task.identity, attempt=1, at_seconds=START, data=started),
        read_event("failed", task=task.identity, attempt=1, at_seconds=START + 5, data={"reason": NASTY, "log": NASTY}),
        read_event("warned", at_seconds=START + 5, data={"message": NASTY}),
    ]
    points = [
        Point(task=task.identity, name=NASTY, step=s, value=1.0 / (s + 1), at_seconds=START + s) for s in range(5)
    ]
    with Store(tmp_path / "store", write=True) as store:
        store.add(tasks=[(NASTY, task)], events=events, points=points)
    with serving(tmp_path / "store", options=("--port", "7520")) as found:
        sight = look(found).open()
        for view in VIEWS:
            sight.to(view)
            sight.page.wait_for_timeout(200)
            assert sight.page.locator("img, main script").count() == 0
            assert sight.page.inner_text("h1") == NASTY
        sight.to("task", id=task.identity).sees(NASTY, within="main h2").sees("onerror", within="main dl")
        assert "owned" not in sight.page.title().split("·")[0]


def test_metrics_that_are_not_finite_are_named_and_left_out_of_curves(tmp_path: Path, look: Look):
    task = make_task("odd")
    values = [1.0, math.nan, math.inf, 0.5, -math.inf, 0.25]
    points = [
        Point(task=task.identity, name="loss", step=s, value=v, at_seconds=START + s) for s, v in enumerate(values)
    ]
    never = [Point(task=task.identity, name="gap", step=1, value=math.nan, at_seconds=START)]
    with Store(tmp_path / "store", write=True) as store:
        store.add(tasks=[("w", task)], points=points + never)
    with serving(tmp_path / "store", options=("--port", "7530")) as found:
        sight = look(found).open("tasks").sees("NaN", within="main").sees("0.25", within="main")
        sight.to("task", id=task.identity).sees("NaN", within="main")
        sight.page.wait_for_selector(".uplot canvas")
        sight.to("compare", metric="gap").sees("Curves")


def test_thousands_of_rows_are_a_few_elements(tmp_path: Path, look: Look):
    with Store(tmp_path / "store", write=True) as store:
        fill_many(store, count=3000)
    with serving(tmp_path / "store", options=("--port", "7540")) as found:
        sight = look(found).open("tasks").sees("3,000 of 3,000 tasks")
        assert sight.page.locator(".rows .line").count() < 80
        sight.page.evaluate("document.querySelector('.rows').scrollTop = 2500 * 33")
        sight.sees("many-025", within=".rows")
        assert sight.page.locator(".rows .line").count() < 80
        sight.page.fill("input[type=search]", "many-0123")
        sight.sees("10 of 3,000 tasks")


def test_a_store_that_vanishes_is_said_and_read_again(sweep: Path, tmp_path: Path, look: Look):
    home = tmp_path / "store"
    shutil.copytree(sweep, home)
    with serving(home, tmp_path / "nothing", options=("--port", "7550")) as found:
        sight = look(found).open()
        sight.allowed += ("status of 404",)  # what was asked for in the moment in which the store was gone
        shutil.move(home, tmp_path / "aside")
        sight.sees("The store cannot be read").sees("Finished\n9")
        shutil.move(tmp_path / "aside", home)
        sight.page.wait_for_selector(".trouble", state="hidden")
        sight.page.select_option("select[aria-label=Store]", "1")
        sight.sees("there must be a store").sees("nothing yet")
        with Store(tmp_path / "nothing", write=True) as store:
            fill_many(store, count=4)
        sight.sees("Finished\n4")


def test_an_hour_offline_is_made_up_for(sweep: Path, tmp_path: Path, look: Look):
    home = tmp_path / "store"
    shutil.copytree(sweep, home)
    with serving(home, options=("--port", "7560")) as found:
        sight = look(found)
        sight.allowed += ("ERR_INTERNET_DISCONNECTED", "Failed to load resource", "EventSource", "ERR_NETWORK")
        sight.page.clock.install()
        sight.open().sees("Live")
        sight.page.context.set_offline(True)
        for _ in range(60):
            sight.page.clock.run_for(60_000)
        sight.sees("No connection")
        with Store(home, write=True) as store:
            fill_many(store, count=5)
        sight.page.context.set_offline(False)
        for _ in range(20):
            sight.page.clock.run_for(3_000)
            sight.page.wait_for_timeout(200)
        sight.page.clock.resume()
        sight.sees("Live").sees("of 17 tasks")


def test_a_clock_that_jumps_changes_nothing(address: str, look: Look):
    sight = look(address)
    sight.page.clock.install(time="2001-01-01T00:00:00")
    sight.page.clock.resume()
    sight.open().sees("10 min 15 s")
    sight.page.clock.set_system_time("2055-01-01T00:00:00")
    sight.to("schedule").sees("Plan 2 of 2")
    sight.to("overview").sees("10 min 15 s")
    assert "−" not in sight.page.inner_text(".tiles")


def test_the_report_shows_the_same_views(sweep: Path, tmp_path: Path, look: Look):
    from dovetail.web import write_report

    with Store(sweep) as store:
        path = write_report(store, tmp_path / "report.html")
    sight = look(f"file://{path}")
    sight.page.goto(f"file://{path}")
    for view in VIEWS:
        sight.to(view)
        for words in EXPECTED[view]:
            sight.sees(words, within="main")
    sight.to("task", id=make_sweep_task())
    sight.page.click("summary:text('6 events')")
    sight.sees("the worker fell silent for 30 s", within="main")
    assert not sight.page.locator("text=Controller").is_visible()


def test_a_pipeline_in_another_store_is_drawn(sweep: Path, tmp_path: Path, look: Look):
    with Store(tmp_path / "pipeline", write=True) as store:
        fill_pipeline(store)
    with serving(sweep, tmp_path / "pipeline", options=("--port", "7580")) as found:
        sight = look(found).open("pipeline", store="1")
        sight.sees("tower: 1f1b on n0:0, n0:1").sees("planned: 300 ms").sees("measured in step 4")
        assert sight.page.input_value("select[aria-label=Store]") == "1"
        names = sight.page.locator(".downloads button").evaluate_all("all => all.map(each => each.ariaLabel)")
        assert len(names) == 4
        sight.page.select_option("select[aria-label=Store]", "0")
        sight.sees("No task was planned as a pipeline")
