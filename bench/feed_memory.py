"""What loaders hold: the memory of a process and all its children, beyond what it had before, at its highest.

Each case runs in a process of its own, with a consumer that is slower than its loader, so that queues fill up. Memory
is the proportional set size, in which what several processes share counts once. What interpreter and libraries take,
once for all feeds of a process, is there before.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from feed_pipelines import GROWING, LARGE, PIPELINES, Numbers, steady_rate

BUDGETS = {"64 MiB": 64 << 20, "128 MiB": 128 << 20, "256 MiB": 256 << 20}
CASES = {"large": LARGE, "growing": GROWING, "pictures": PIPELINES["pictures"]}


def memory_rows(*, seconds: float, quick: bool) -> list[dict[str, Any]]:
    """Feeds with each budget on each case, and torch's loader with eight workers beside the smallest."""
    budgets = dict(list(BUDGETS.items())[:1]) if quick else BUDGETS
    cases = ["large"] if quick else list(CASES)
    rows = []
    for case in cases:
        for name, budget in budgets.items():
            rows.append(_row("feed", case, name, budget, seconds))
        rows.append(_row("DataLoader", case, "64 MiB", 64 << 20, seconds))
    return rows


def _row(by: str, case: str, name: str, budget: int, seconds: float) -> dict[str, Any]:
    words = [sys.executable, str(Path(__file__)), by, case, str(budget), str(seconds)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed:\n{done.stderr}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return {
        "by": by,
        "case": case,
        "budget": name,
        "peak over budget": found["peak"] / budget,
        "items/s": found["rate"],
    }


class PeakMemoryOfTree:
    """The highest memory of this process and its children, beyond what it had when this was made."""

    def __init__(self) -> None:
        self._before, self._peak, self._ends = tree_bytes(), 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakMemoryOfTree":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.set()
        self._thread.join()

    @property
    def bytes(self) -> int:
        """The highest so far."""
        return max(0, self._peak - self._before)

    def _watch(self) -> None:
        while not self._ends.wait(0.02):
            self._peak = max(self._peak, tree_bytes())


def tree_bytes() -> int:
    """The proportional set size of this process and its children."""
    this = psutil.Process()
    found = 0
    for process in (this, *this.children(recursive=True)):
        with contextlib.suppress(OSError):  # it may be gone
            for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    found += int(line.split()[1]) << 10
    return found


def _start_processes() -> None:
    """Let there be the process from which the workers of all feeds are forked, which imports torch once."""
    from dovetail.feeds import feed
    from dovetail.vocabulary.feeds import FeedPlan, StagePlan

    first = feed(range(8)).batch(4)
    stages = tuple(StagePlan(name=stage.name, worker="process", workers=1) for stage in first.work_stages())
    with first.open(FeedPlan(stages=stages)) as running:
        list(running)


class _SlowConsumer:
    """Batches, each taken a while after the one before."""

    def __init__(self, batches: Any, seconds: float) -> None:
        self._batches, self._seconds = batches, seconds

    def __iter__(self) -> Any:
        for batch in self._batches:
            yield batch
            time.sleep(self._seconds)


def main() -> None:
    """One case, here."""
    by, case, budget, seconds = sys.argv[1], CASES[sys.argv[2]], int(sys.argv[3]), float(sys.argv[4])
    by_feed, loader = by == "feed", None
    if by_feed:
        from feed import define

        from dovetail.engines.feeding import open_feed

        _start_processes()
    else:
        from torch.utils.data import DataLoader

        loader = DataLoader(Numbers(case), batch_size=case.batch, num_workers=8)
    case(0)  # what its functions import and keep is not the loader's
    with PeakMemoryOfTree() as peak, contextlib.ExitStack() as stack:
        batches = stack.enter_context(open_feed(define(case), budget_bytes=budget)) if by_feed else loader
        rate = steady_rate(_SlowConsumer(batches, 0.05), case, warm_seconds=3.0, seconds=seconds)
    print(json.dumps({"peak": peak.bytes, "rate": rate}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
