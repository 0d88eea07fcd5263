"""Writes docs/page/*.png, every view of the live page in light and dark: `.venv/bin/python docs/make_screenshots.py`.

Needs Chromium (`make browser`). What is shown is the sweep that the tests of the page show, with what a run would have
measured of it beside, and a pipeline in a store of its own.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from dovetail.store import Store  # noqa: E402
from dovetail.vocabulary import FrozenDict, Profile, read_event  # noqa: E402
from dovetail.vocabulary.events import DevicesReleased  # noqa: E402
from tests.web.browser import Sight, find_chromium, serving  # noqa: E402
from tests.web.synthetic import START, fill_sweep  # noqa: E402
from tests.web.test_timetable_charts import fill as fill_pipeline  # noqa: E402

FOLDER = ROOT / "docs" / "page"
SIZE = {"width": 1280, "height": 860}
SHOWN_TASK = 6
# What of a view is worth seeing first, where that is not its beginning.
VIEWS: dict[str, dict[str, str]] = {
    "overview": {},
    "schedule": {},
    "tasks": {"sort": "-metric:accuracy"},
    "task": {},
    "compare": {"metric": "loss"},
    "cluster": {},
    "pipeline": {"store": "1"},
}


def main() -> None:
    """Make the stores, serve them, and take every picture."""
    from playwright.sync_api import sync_playwright

    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        sweep, pipeline = Path(folder) / "sweep", Path(folder) / "pipeline"
        task = fill(sweep)
        with Store(pipeline, write=True) as store:
            fill_pipeline(store)
        with serving(Path("sweep"), Path("pipeline"), cwd=Path(folder)) as address, sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
            for scheme in ("light", "dark"):
                context = browser.new_context(viewport=SIZE, color_scheme=scheme)
                sight = Sight(context.new_page(), address).open()
                for view, chosen in VIEWS.items():
                    take(sight, view, {**chosen, **({"id": task} if view == "task" else {})}, scheme)
                sight.check()
                context.close()
            browser.close()


def take(sight: Sight, view: str, chosen: dict[str, str], scheme: str) -> None:
    """One picture."""
    sight.to(view, **chosen)
    sight.page.wait_for_timeout(1500)
    sight.page.screenshot(path=FOLDER / f"{view}-{scheme}.png")


def fill(home: Path) -> str:
    """The sweep with what was measured of it; gives the task whose page is shown."""
    with Store(home, write=True) as store:
        tasks = fill_sweep(store)
        store.add(profiles=[profile for number in range(len(tasks)) for profile in _profiles(number)])
        store.add(events=[_released(number) for number in range(40)])
        asked = {"priority": 2.0, "asked_by": "ada, on the page"}
        store.add(events=[read_event("prioritized", task=tasks[11].identity, at_seconds=START + 480, data=asked)])
        return tasks[SHOWN_TASK].identity


def _profiles(number: int) -> list[Profile]:
    """A family's own way, and two others."""
    size, step = (4 + 6 * (number // 3)) << 30, 0.12 * (1 + number // 3)
    common: dict[str, Any] = {"family": f"family{number}", "kind": "h100", "parameter_bytes": size // 8}
    return [
        Profile(**common, count=1, step_seconds=step, peak_bytes=size),
        Profile(**common, count=2, step_seconds=0.61 * step, peak_bytes=size, technique="replicate"),
        Profile(**common, count=2, step_seconds=0.74 * step, peak_bytes=size // 2, technique="shard"),
    ]


def _released(number: int) -> DevicesReleased:
    seconds = {"step": 37.0, "evaluation": 3.1, "saving": 1.4, "building": 1.2, "reading": 0.8, "importing": 0.6}
    return DevicesReleased(
        at_seconds=START + 60 + 14.0 * number,
        placement=f"p{number}",
        duration_seconds=45.0,
        purpose="train",
        devices=(f"n0:{number % 4}",),
        seconds=FrozenDict(seconds),
    )


if __name__ == "__main__":
    main()
