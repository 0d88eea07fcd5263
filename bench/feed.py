"""Feeds on eight pipelines: beside the best fixed setting of the same runtime, the best `DataLoader`, and what others
have; what they hold, what an item costs, what a resize costs, and how far predictions are off.

`python bench/feed.py [PART ...] [--check] [--quick] [--without-peers]`. A part is a pipeline by name, or `memory`,
`overhead`, `resize`, `simulated`; all of them where none is named. The best fixed setting is searched exhaustively, in
the same run: every kind of worker for every stage, and every number of each kind in `THREADS` and `PROCESSES`, each for
a moment, and the best of these then by turns with ours and the loader's. Others have environments of their own, which
are made in a cache folder; whoever cannot be installed is named with the reason.
"""

import argparse
import contextlib
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from feed_memory import memory_rows
from feed_peers import PACKAGES, rate_of
from feed_pipelines import PIPELINES, Numbers, Pipeline, steady_rate
from reporting import Bar, finish
from simulated_feed import SimulatedFeed, SimulatedStage

from dovetail.engines.feeding import FeedChange, open_feed
from dovetail.feeds import Feed
from dovetail.feeds import feed as describe_feed
from dovetail.planning.feeds import plan_feed
from dovetail.vocabulary.feeds import FeedPlan, StagePlan, StageProfile

THREADS, PROCESSES = (3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128), (3, 4, 6)
BUDGET_BYTES = 256 << 20
# A glance at each fixed setting, and how many of the best are looked at for longer.
GLANCE_SECONDS, AGAIN = 0.8, 3
# Then all read by turns: so often, for so long each, once they have run for a moment.
ROUNDS, WINDOW_SECONDS, WARM_SECONDS = 9, 2.0, 1.5
REACHED_SECONDS = 10.0
OTHERS = ("memory", "overhead", "resize", "simulated")


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("parts", nargs="*", metavar="PART", help=", ".join([*PIPELINES, *OTHERS]))
    arguments.add_argument("--check", action="store_true", help="end with 1 where a bar is missed")
    arguments.add_argument("--quick", action="store_true", help="glances only, without peers; writes nothing")
    arguments.add_argument("--without-peers", action="store_true", help="leave the pipelines of others out")
    chosen = arguments.parse_args()
    if unknown := set(chosen.parts) - {*PIPELINES, *OTHERS}:
        arguments.error(f"PART must be one of {', '.join([*PIPELINES, *OTHERS])}, got {', '.join(sorted(unknown))}")
    parts = chosen.parts or ["frees", "simulated"] if chosen.quick else chosen.parts or [*PIPELINES, *OTHERS]
    rows, bars = [], []
    for part in parts:
        found, mine = measure(part, quick=chosen.quick, peers=not (chosen.quick or chosen.without_peers))
        rows += found
        bars += mine
        for row in found:  # the whole takes the better part of an hour
            print(
                {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}, flush=True
            )
    ratios = [row["over DataLoader"] for row in rows if "over DataLoader" in row]
    if len(ratios) == len(PIPELINES):
        bars.append(Bar("all, geometric mean over the best DataLoader", statistics.geometric_mean(ratios), least=1.3))
    return finish("feed", rows, bars, check=chosen.check, quick=chosen.quick, part_by="part")


def measure(part: str, *, quick: bool, peers: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """The rows and bars of one part."""
    if part in PIPELINES:
        return compare(PIPELINES[part], quick=quick, peers=peers)
    return {"memory": memory, "overhead": overhead, "resize": resize, "simulated": simulated}[part](quick=quick)


# The eight pipelines


def compare(pipeline: Pipeline, *, quick: bool, peers: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """One pipeline by everybody. Ours is followed from nothing until it has settled; then the workers that it has come
    to read by turns with the best fixed settings and the loader, each begun anew and alone, for the machine is faster
    at one moment than at the next. Peers in environments of their own read between two turns of ours."""
    candidates = glance(pipeline, quick=quick)
    workers = best_loader(pipeline, quick=quick)
    with FollowedFeed(pipeline, settle_seconds=0.5 if quick else REACHED_SECONDS) as ours:
        settled = ours.plan
    readers: dict[str, Opened] = {in_short(plan): partial(open_fixed, pipeline, plan) for plan in candidates}
    readers["ours"] = partial(open_fixed, pipeline, settled)
    readers["DataLoader"] = lambda: contextlib.nullcontext(loader(pipeline, workers))
    rates = by_turns(readers, pipeline, rounds=1 if quick else ROUNDS)
    own, loaded = (statistics.median(rates.pop(name)) for name in ("ours", "DataLoader"))
    medians = {name: statistics.median(found) for name, found in rates.items()}
    setting, best = max(medians.items(), key=lambda each: each[1])
    row: dict[str, Any] = {
        "part": pipeline.name,
        "items/s": own,
        "workers": in_short(settled),
        "resizes": ours.resizes,
        "best fixed": best,
        "fixed workers": setting,
        "of best fixed": own / best,
        "reached seconds": reached(ours.times, 0.95 * ours.rate * best / own, pipeline),
        "predicted over measured": ours.predicted / ours.rate,  # of one moment: the machine is slower at another
        "DataLoader": loaded,
        "loader workers": workers,
        "over DataLoader": own / loaded,
    }
    bars = [
        Bar(f"{pipeline.name}, of the best fixed setting", row["of best fixed"], least=0.95),
        Bar(f"{pipeline.name}, seconds until that was reached", row["reached seconds"], most=REACHED_SECONDS),
        Bar(f"{pipeline.name}, prediction off by", abs(row["predicted over measured"] - 1), most=0.1),
    ]
    for peer in PACKAGES if peers else ():
        before = window(readers["ours"], pipeline)
        rate, reason = rate_of(peer, pipeline, seconds=6.0, warm_seconds=3.0)
        row[peer] = rate if rate is not None else reason
        if rate is not None:
            over = (before + window(readers["ours"], pipeline)) / 2 / rate
            row[f"over {peer}"] = over
            bars.append(Bar(f"{pipeline.name}, over {peer}", over, least=0.95))
    return [row], bars


Opened = Callable[[], contextlib.AbstractContextManager[Iterable[Any]]]
"""Begins to read, from the first item, until it is left."""


def by_turns(readers: dict[str, Opened], pipeline: Pipeline, *, rounds: int) -> dict[str, list[float]]:
    """The rates of each, a window in every round, with nobody else reading: whoever filled its buffers while others
    are read would take cores from them, and have a moment's batches ready at its own turn."""
    found: dict[str, list[float]] = {name: [] for name in readers}
    for number in range(rounds):
        for name in sorted(readers, reverse=number % 2 == 1):
            found[name].append(window(readers[name], pipeline))
    return found


def window(begin: Opened, pipeline: Pipeline) -> float:
    """Items per second over a moment, once it runs and has come to where the pipeline is counted from."""
    with begin() as batches:
        return steady_rate(batches, pipeline, warm_seconds=WARM_SECONDS, seconds=WINDOW_SECONDS)


def open_fixed(pipeline: Pipeline, plan: FeedPlan) -> contextlib.AbstractContextManager[Iterable[Any]]:
    """The pipeline with a fixed plan."""
    return define(pipeline).open(plan, budget_bytes=BUDGET_BYTES)


def define(pipeline: Pipeline) -> Feed:
    """The pipeline as a feed."""
    found = describe_feed(range(pipeline.items))
    for stage in pipeline.stages:
        found = found.map(stage)
    return found.batch(pipeline.batch)


class FollowedFeed:
    """The pipeline as a feed that is measured, planned, opened and followed, from nothing. It is counted after
    `settle_seconds` from the beginning, and once it has come to where the pipeline is counted from; `batches` go on."""

    def __init__(self, pipeline: Pipeline, *, settle_seconds: float) -> None:
        self._changes: list[FeedChange] = []
        self.times = [time.perf_counter()]
        self._opened = contextlib.ExitStack()
        self._feed = self._opened.enter_context(
            open_feed(define(pipeline), budget_bytes=BUDGET_BYTES, report=self._changes.append)
        )
        self.batches = iter(self._feed)
        least = pipeline.counted_from // pipeline.batch
        while self.times[-1] - self.times[0] < settle_seconds or len(self.times) <= least:
            self._take()
        settled = len(self.times) - 1
        while self.times[-1] - self.times[settled] < (WINDOW_SECONDS if settle_seconds < 1 else 2 * WINDOW_SECONDS):
            self._take()
        self.rate = (len(self.times) - 1 - settled) * pipeline.batch / (self.times[-1] - self.times[settled])
        self.predicted = self._feed.predicted_per_second() * pipeline.batch

    def __enter__(self) -> "FollowedFeed":
        return self

    def __exit__(self, *raised: object) -> None:
        self._opened.close()

    @property
    def plan(self) -> FeedPlan:
        """Its workers of now."""
        return self._feed.plan

    @property
    def resizes(self) -> int:
        """How often it has been resized."""
        return len(self._changes)

    def _take(self) -> None:
        next(self.batches)
        self.times.append(time.perf_counter())


def in_short(plan: FeedPlan) -> str:
    """A plan's workers: `4t 2p` are four threads, then two processes."""
    return " ".join(f"{stage.workers}{stage.worker[0]}" for stage in plan.stages)


def reached(times: list[float], rate: float, pipeline: Pipeline, *, window: float = 1.0) -> float:
    """After how many seconds, from the beginning or from when its items changed, a feed gave so many items a second."""
    changed = pipeline.counted_from // pipeline.batch
    start, later = times[min(changed, len(times) - 1)], times[changed + 1 :]
    for first, at in enumerate(later):
        last = next((number for number in range(first, len(later)) if later[number] - at >= window), None)
        if last is None:
            break
        if (last - first) * pipeline.batch / (later[last] - at) >= rate:
            return at - start
    return math.nan


def glance(pipeline: Pipeline, *, quick: bool) -> list[FeedPlan]:
    """The fixed settings with the highest rates, at a glance."""
    seconds = GLANCE_SECONDS / 2 if quick else GLANCE_SECONDS
    found = [(fixed_rate(pipeline, plan, seconds=seconds), plan) for plan in settings(pipeline, quick=quick)]
    return [plan for _, plan in sorted(found, key=lambda each: -each[0])[: 1 if quick else AGAIN]]


def settings(pipeline: Pipeline, *, quick: bool) -> Iterator[FeedPlan]:
    """Every kind of worker for every function, with every number of workers of each kind: stages of one kind share
    theirs. Numbers are read, and batches are put together, where the functions beside them run."""
    threads, processes = ((1, 2), (1,)) if quick else (THREADS, PROCESSES)
    names = [stage.name for stage in define(pipeline).work_stages()]
    for chosen in itertools.product(("thread", "process"), repeat=len(pipeline.stages)):
        kinds = [chosen[0], *chosen, chosen[-1]]
        counts = {"thread": threads, "process": processes}
        for workers in itertools.product(*(counts[kind] for kind in sorted(set(kinds)))):
            yield pooled_plan(names, kinds, dict(zip(sorted(set(kinds)), workers, strict=True)))


def pooled_plan(names: list[str], kinds: list[str], workers: dict[str, int]) -> FeedPlan:
    """A plan whose stages of each kind have so many workers together, and one each at the least."""
    stages = []
    for number, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        is_first = kind not in kinds[:number]
        count = max(1, workers[kind] - kinds.count(kind) + 1) if is_first else 1
        stages.append(StagePlan(name=name, worker=kind, workers=count, buffer_bytes=BUDGET_BYTES // len(names)))
    return FeedPlan(stages=tuple(stages))


def fixed_rate(pipeline: Pipeline, plan: FeedPlan, *, seconds: float) -> float:
    """Items per second with a fixed plan."""
    with open_fixed(pipeline, plan) as running:
        return steady_rate(running, pipeline, warm_seconds=0.5, seconds=seconds)


def best_loader(pipeline: Pipeline, *, quick: bool) -> int:
    """With how many workers torch's own loader is fastest, of 0 to 8."""
    seconds = 1.0 if quick else 2.0
    counts = range(3 if quick else 9)
    rates = [steady_rate(loader(pipeline, each), pipeline, warm_seconds=1.0, seconds=seconds) for each in counts]
    return rates.index(max(rates))


def loader(pipeline: Pipeline, workers: int) -> Iterable[Any]:
    """Torch's own loader of the pipeline's items."""
    from torch.utils.data import DataLoader

    found: Iterable[Any] = DataLoader(Numbers(pipeline), batch_size=pipeline.batch, num_workers=workers)
    return found


# Memory, overhead, resizes, and virtual time


def memory(*, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """What feeds hold against their budgets, and one peer."""
    rows = memory_rows(seconds=1.0 if quick else 5.0, quick=quick)
    bars = [
        Bar(f"memory, peak over a budget of {row['budget']}, {row['case']}", row["peak over budget"], most=1.0)
        for row in rows
        if row["by"] == "feed"
    ]
    return [{"part": "memory", **row} for row in rows], bars


def overhead(*, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """What an item costs that takes nothing."""
    with FollowedFeed(PIPELINES["small"], settle_seconds=0.5 if quick else 3.0) as ours:
        rate = ours.rate
    row = {"part": "overhead", "items/s": rate, "microseconds an item": 1e6 / rate}
    return [row], [Bar("overhead, microseconds an item", 1e6 / rate, most=15.0)]


def resize(*, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """A worker more and one back, again and again: the items missed in the second after each, beside the second before
    it and the one after that. Others on the machine come and go over many seconds, and less so over three."""
    pipeline, times = PIPELINES["frees"], 1 if quick else 16
    names = [stage.name for stage in define(pipeline).work_stages()]
    missed, others = [], []
    with define(pipeline).open(pooled_plan(names, ["thread"] * 3, {"thread": 4}), budget_bytes=BUDGET_BYTES) as running:
        batches = iter(running)
        steady_rate(batches, pipeline, warm_seconds=1.0, seconds=1.0)
        for number in range(times):
            before = steady_rate(batches, pipeline, warm_seconds=0.0, seconds=1.0)
            running.resize(names[1], workers=2 if number % 2 == 0 else 1, worker="thread")
            after, later = (steady_rate(batches, pipeline, warm_seconds=0.0, seconds=1.0) for _ in range(2))
            usual = (before + later) / 2
            missed.append((usual - after) / (10 * usual))
            others += [before, later]
    lost = statistics.median(missed)
    row = {"part": "resize", "items/s": statistics.median(others), "share of ten seconds' items lost": lost}
    return [row], [Bar("resize, share of ten seconds' items lost", max(0.0, lost), most=0.01)]


def simulated(*, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """ray#65540 in virtual time: two stages of 0.17 and 0.21 s on 128 cores, for which 56 and 70 workers were hoped
    for, and 83 and 4 were given."""
    profiles = [
        StageProfile(name=name, worker="process", service_seconds=seconds, cpu_seconds=seconds)
        for name, seconds in (("first", 0.17), ("second", 0.21))
    ]
    plan = plan_feed(profiles, cores=128, budget_bytes=1 << 30)
    ways = {"ours": [stage.workers for stage in plan.stages], "hoped for": [56, 70], "Ray's": [83, 4]}
    rows, rates = [], {}
    for way, workers in ways.items():
        stages = [
            SimulatedStage(
                name=each.name,
                computes=lambda item, each=each: each.cpu_seconds,
                workers=count,
                buffer_items=16 * count,
            )
            for each, count in zip(profiles, workers, strict=True)
        ]
        feed = SimulatedFeed(stages, cores=128)
        feed.run(20.0 if quick else 120.0)
        rates[way] = feed.rate(10.0)
        rows.append({"part": "simulated", "case": way, "workers": str(workers), "items/s": rates[way]})
    return rows, [Bar("simulated, ours over what was hoped for", rates["ours"] / rates["hoped for"], least=1.0)]


if __name__ == "__main__":
    sys.exit(main())
