"""The live page of ten thousand tasks with a thousand points each: how soon it is there, how smoothly it moves, and
what its server holds.

`python bench/page_load.py [--tasks 10000] [--points 1000] [--quick] [--check]`

A real browser (Chromium, without a window) on the real command. The first view counts from the moment at which the
address is opened to that at which the tiles show all tasks. Frames are counted by the browser while the table scrolls,
while words are typed into its search, and while the schedule is panned and zoomed, a change in every frame.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import page_store
import psutil
from reporting import Bar, finish

FIRST_SECONDS, FIRST_SECONDS_SMALL, SMALL = 2.0, 1.0, 1000
FRAMES, MEBIBYTES = 30.0, 300.0
MOVES = 3.0  # seconds of moving
# Calls back before every frame, moves something, and counts.
COUNT = """
async ([what, seconds]) => {
  const table = document.querySelector(".rows"), search = document.querySelector("input[type=search]");
  const canvas = document.querySelector("canvas[tabindex]");
  const words = ["rate=0.1", "", "seed=12", "width=64", "net", "seed=9"];
  const press = (key) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key }));
  let frames = 0, longest = 0, last = performance.now();
  const moves = {
    scroll: () => { table.scrollTop = (table.scrollTop + 400) % (table.scrollHeight - table.clientHeight); },
    filter: () => {
      if (frames % 6) return;
      search.value = words[(frames / 6) % words.length];
      search.dispatchEvent(new Event("input"));
    },
    schedule: () => press(["+", "ArrowRight", "-", "ArrowLeft"][Math.floor((frames % 40) / 10)]),
  };
  const began = performance.now();
  while (performance.now() - began < 1000 * seconds) {
    moves[what]();
    await new Promise(requestAnimationFrame);
    longest = Math.max(longest, performance.now() - last);
    last = performance.now();
    frames += 1;
  }
  return [frames / ((performance.now() - began) / 1000), longest];
}
"""


def serve(home: Path) -> tuple["subprocess.Popen[str]", str]:
    """The real command, and its address."""
    words = [sys.executable, "-m", "dovetail", "ui", "--no-browser", "--port", "7900", "--store", str(home)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while "token=" not in (line := process.stdout.readline()):
        assert line, "the page must be served"
    return process, line.strip()


def first_view(browser: Any, address: str, tasks: int) -> tuple[Any, float]:
    """A fresh page, and the seconds until its tiles show that many tasks."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    began = time.perf_counter()
    page.goto(address, wait_until="commit")
    words = f"of {tasks:,} tasks"
    page.wait_for_function(
        "words => document.querySelector('.tiles')?.innerText.includes(words)", arg=words, timeout=120_000
    )
    return page, time.perf_counter() - began


def measure(browser: Any, tasks: int, points: int) -> dict[str, float]:
    """All figures of one size."""
    folder = Path(tempfile.mkdtemp(prefix="page-load-"))
    try:
        page_store.fill(folder / "store", tasks=tasks, points=points)
        process, address = serve(folder / "store")
        try:
            return _measure(browser, address, tasks, psutil.Process(process.pid))
        finally:
            process.terminate()
            process.wait()
    finally:
        shutil.rmtree(folder)


def _measure(browser: Any, address: str, tasks: int, server: psutil.Process) -> dict[str, float]:
    page, opening = first_view(browser, address, tasks)  # and reading the store for the first time
    page.context.close()
    views = []
    for _ in range(3):
        page, seconds = first_view(browser, address, tasks)
        views.append(seconds)
        if len(views) < 3:
            page.context.close()
    found = {"tasks": tasks, "opening_s": opening, "first_view_s": sorted(views)[1]}
    for view, what in (("tasks", "scroll"), ("tasks", "filter"), ("schedule", "schedule")):
        page.evaluate(f"() => {{ location.hash = '#/{view}'; }}")
        page.wait_for_selector(".rows .line" if view == "tasks" else "canvas[tabindex]")
        page.wait_for_timeout(1500)
        frames, longest = page.evaluate(COUNT, [what, MOVES])
        found |= {f"{what}_frames_per_s": frames, f"{what}_longest_ms": longest}
    page.wait_for_timeout(2000)
    found["server_mib"] = server.memory_info().rss / (1 << 20)
    page.context.close()
    return found


def main() -> int:
    """Measure both sizes and judge them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true")
    chosen = parser.parse_args()
    from playwright.sync_api import sync_playwright

    sizes = [(300, 20)] if chosen.quick else [(SMALL, chosen.points), (chosen.tasks, chosen.points)]
    path = os.environ.get("DOVETAIL_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        raise SystemExit("this bench must have a browser; chromium is not installed. Nothing was measured.")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        rows = [measure(browser, tasks, points) for tasks, points in sizes]
        browser.close()
    return finish("page_load", rows, _bars(rows), check=chosen.check, quick=chosen.quick)


def _bars(rows: list[dict[str, float]]) -> list[Bar]:
    bars = []
    for row in rows:
        most = FIRST_SECONDS if row["tasks"] > SMALL else FIRST_SECONDS_SMALL
        name = f"{row['tasks']:,} tasks"
        bars.append(Bar(f"{name}, seconds to the first view", row["first_view_s"], most=most))
        bars.append(Bar(f"{name}, seconds to the very first view of a server", row["opening_s"], most=most))
        bars += [
            Bar(f"{name}, frames a second, {what}", row[f"{what}_frames_per_s"], least=FRAMES)
            for what in ("scroll", "filter", "schedule")
        ]
        bars.append(Bar(f"{name}, MiB of the server", row["server_mib"], most=MEBIBYTES))
    return bars


if __name__ == "__main__":
    sys.exit(main())
