"""Streams and drift: events a second, room, false alarms, delays and names, beside River and Evidently.

`python bench/drift.py [PART ...] [--check] [--quick] [--without-peers]`. Parts:
`streams`: events a CPU second of `dt.Monitor` with four attributes, scored, counted up to order 3 and summarised; by
one metric, and by two, whose minimum covariance determinant is taken anew as the sample grows old.
`hitters`: frequent values beside River's heavy hitters, one attribute of text, medians of interleaved runs.
`growth`: what the process and a saved monitor hold after a tenth of the events and after all, 10^8 of them.
`null`: how often `dt.drift` finds anything where nothing changed, at 5%.
`names`: planted drifts of a mean, of errors and of a share, for one to three attributes together: which are named.
`delay`: rows until `dt.DriftDetector` sees a planted drift, over the rows that any test at this rate of false alarms
needs to tell it from chance, ln(tests / rate) / information in a row; and what it says where there is none. River's
ADWIN, Page-Hinkley and KSWIN and Evidently see three of each five streams: rows until they do, alarms a stream before
that, and that they name no combination.
"""

import argparse
import collections
import concurrent.futures
import json
import math
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import drift_peers
import numpy as np
import pandas as pd
import psutil
from reporting import Bar, finish

import dovetail as dt
from dovetail.watch.streams.heavy_hitters import HeavyHitters
from dovetail.watch.streams.monitor import CHUNK_EVENTS

CARDINALITIES = {"few values": (4, 8, 20, 50), "many values": (10, 100, 1_000, 20_000)}
ATTRIBUTES = ["a0", "a1", "a2", "a3"]
Found = tuple[list[dict[str, Any]], list[Bar]]


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    arguments.add_argument("--check", action="store_true", help="end with 1 where a bar is missed")
    arguments.add_argument("--quick", action="store_true", help="a toy size, without peers; writes nothing")
    arguments.add_argument("--without-peers", action="store_true", help="leave River and Evidently out")
    chosen = arguments.parse_args()
    if unknown := set(chosen.parts) - set(PARTS):
        arguments.error(f"PART must be one of {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    peers, code = not (chosen.quick or chosen.without_peers), 0
    for part in chosen.parts or PARTS:  # each is kept as it comes: on a busy machine the whole takes long
        rows, bars = PARTS[part](chosen.quick, peers)
        code |= finish("drift", rows, bars, check=chosen.check, quick=chosen.quick, part_by="part")
    return code


def zipf(draws: np.random.Generator, values: int, count: int) -> np.ndarray:
    """Numbers below `values`, the n-th of which comes 1 / n as often as the first."""
    weights = 1 / np.arange(1, values + 1)
    return draws.choice(values, count, p=weights / weights.sum())


def events(draws: np.random.Generator, count: int, *, values: tuple[int, ...], kind: str) -> pd.DataFrame:
    """A batch with two metrics, a time and four attributes: numbers, categories or text."""
    table: dict[str, Any] = {}
    for name, size in zip(ATTRIBUTES, values, strict=True):
        codes, words = zipf(draws, size, count), np.array([f"v{n}" for n in range(size)], dtype=object)
        table[name] = {"numbers": codes, "categories": codes, "text": words[codes]}[kind]
        if kind == "categories":
            table[name] = pd.Categorical.from_codes(codes, categories=words)
    table |= {"m": draws.normal(size=count), "second": draws.gamma(2.0, size=count), "at": np.arange(count) / 1_000}
    return pd.DataFrame(table).astype(dict.fromkeys(ATTRIBUTES, object) if kind == "text" else {})


def watch(*metrics: str) -> dt.Monitor:
    """The monitor of the stream."""
    return dt.Monitor(metrics=metrics or ("m",), attributes=ATTRIBUTES, time="at")


def streams(quick: bool, peers: bool) -> Found:
    """Events a CPU second."""
    draws, rows, bars = np.random.default_rng(0), [], []
    for size, values in CARDINALITIES.items():
        for kind in ("numbers", "categories", "text", "two metrics"):
            metrics = ("m", "second") if kind == "two metrics" else ("m",)
            batch = events(
                draws, CHUNK_EVENTS // (8 if quick else 1), values=values, kind="numbers" if len(metrics) > 1 else kind
            )
            monitor = watch(*metrics)
            monitor.update(batch)
            seconds = [cpu_seconds(lambda: monitor.update(batch)) for _ in range(2 if quick else 12)]  # noqa: B023
            # Every other update takes the determinant anew, which a median would leave out.
            rate = len(batch) / (statistics.mean(seconds) if len(metrics) > 1 else statistics.median(seconds))
            rows.append({"part": "streams", "of": f"{size}, {kind}", "events/CPU s": rate})
            if len(metrics) == 1:
                bars.append(Bar(f"streams, {size}, {kind}, events a CPU second", rate, least=2e6))
    return rows, [] if quick else bars


def hitters(quick: bool, peers: bool) -> Found:
    """Frequent values of one attribute, ours and River's, which takes Python's numbers and words one by one."""
    rows, bars = [], []
    batch = events(np.random.default_rng(0), 20_000 if quick else 1_000_000, values=(20_000,) * 4, kind="categories")
    codes, words = batch["a0"].cat.codes.to_numpy(), batch["a0"].astype(object).to_numpy()
    for kind, column in {"numbers": codes, "categories": batch["a0"].array, "text": words}.items():
        counts = [(count_values(column), ask_river(column) if peers else {}) for _ in range(3)]
        mine = statistics.median(rate for rate, _ in counts)
        row: dict[str, Any] = {"part": "hitters", "of": kind, "events/CPU s": mine}
        if all("rate" in said for _, said in counts):
            row["River"] = statistics.median(said["rate"] for _, said in counts)
            row["over River"] = mine / row["River"]
        rows.append(row | ({"River": counts[0][1]["reason"]} if "reason" in counts[0][1] else {}))
        if "over River" in row:
            bars.append(Bar(f"hitters, {kind}, over River", row["over River"], least=10.0))
    return rows, bars


def count_values(column: Any) -> float:
    """Events a CPU second of ours."""
    counter = HeavyHitters(["a"], capacity=1_000, order=1)
    batches = [column[at : at + CHUNK_EVENTS] for at in range(0, len(column), CHUNK_EVENTS)]
    return len(column) / cpu_seconds(lambda: [counter.update([batch]) for batch in batches])


def ask_river(column: Any) -> dict[str, Any]:
    """The same of River's."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "values.json").write_text(json.dumps(column.tolist()))
        return drift_peers.ask("hitters", Path(folder))


def growth(quick: bool, peers: bool) -> Found:
    """What is held after a tenth of the events, and after all, by a process that has done nothing else: what other
    parts have freed, and its allocator keeps, would be counted as growth when it is used again."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_grow, quick).result()


def _grow(quick: bool) -> Found:
    total, draws, sizes = (4_000_000 if quick else 100_000_000), np.random.default_rng(0), []
    batches = [events(draws, CHUNK_EVENTS, values=CARDINALITIES["many values"], kind="numbers") for _ in range(4)]
    monitor, done, began = watch(), 0, time.process_time()
    # An update more or less is in the middle of being freed: the median of the last ones says what is held.
    held: collections.deque[int] = collections.deque(maxlen=20)
    with tempfile.TemporaryDirectory() as folder:
        for number, end in enumerate((total // 10, total)):
            while done < end:
                batch = batches[(done // CHUNK_EVENTS) % 4]
                # New values all the time, and later times: what must be forgotten is forgotten.
                monitor.update(
                    batch.assign(a3=batch["a3"] + done // CHUNK_EVENTS % 1_000 * 7, at=batch["at"] + done / 1e3)
                )
                done += len(batch)
                held.append(psutil.Process().memory_info().rss)
            saved = monitor.save(Path(folder) / str(number)).stat().st_size
            sizes.append((statistics.median(held), saved))
    seconds = time.process_time() - began
    row = {"part": "growth", "events": done, "process MiB": sizes[1][0] / 2**20, "saved MiB": sizes[1][1] / 2**20}
    bars = [
        Bar("growth, process after all over after a tenth", sizes[1][0] / sizes[0][0], most=1.05),
        Bar("growth, saved after all over after a tenth", sizes[1][1] / sizes[0][1], most=1.05),
    ]
    return [row | {"events/CPU s": done / seconds}], bars


def window(
    draws: np.random.Generator,
    count: int,
    where: dict[str, int],
    *,
    slower: float = 0,
    wrong: float = 0,
    more: float = 0,
) -> dict[str, np.ndarray]:
    """Rows of four attributes, two metrics, a label and a prediction, drifted for those of `where`."""
    table = {name: zipf(draws, size, count) for name, size in zip(ATTRIBUTES, (3, 5, 10, 30), strict=True)}
    turned = draws.random(count) < more
    for name, value in where.items():
        table[name][turned] = value
    there = np.all([table[name] == value for name, value in where.items()], axis=0) & bool(where)
    table |= {"m": draws.normal(size=count) + slower * there, "skewed": draws.exponential(size=count) ** 3}
    label = draws.integers(0, 2, count)
    is_wrong = draws.random(count) < 0.05 + wrong * there
    return table | {"y": label, "predicted": np.where(is_wrong, 1 - label, label)}


COLUMNS = {"attributes": ATTRIBUTES, "metrics": ["m", "skewed"], "label": "y", "prediction": "predicted"}


def null(quick: bool, peers: bool) -> Found:
    """How often anything is found where nothing changed."""
    draws, count = np.random.default_rng(1), 10 if quick else 200
    alarms = sum(dt.drift(window(draws, 4_000, {}), window(draws, 2_000, {}), **COLUMNS).drifted for _ in range(count))
    row = {"part": "null", "draws": count, "false alarms": alarms / count}
    return [row], [] if quick else [Bar("null, draws with a false alarm", alarms / count, most=0.05)]


def names(quick: bool, peers: bool) -> Found:
    """Which planted drifts are named, and what else is."""
    draws, rows, bars = np.random.default_rng(2), [], []
    for what, planted in {"mean": {"slower": 1.0}, "error": {"wrong": 0.3}, "share": {"more": 0.04}}.items():
        right = named = 0
        draws_of = 3 if quick else 20
        for _ in range(draws_of):
            chosen = draws.choice(ATTRIBUTES, draws.integers(1, 4), replace=False)
            where = {str(name): int(draws.integers(0, 2)) for name in sorted(chosen)}
            found = dt.drift(window(draws, 30_000, {}), window(draws, 30_000, where, **planted), **COLUMNS).findings
            right += where in [each.values for each in found]
            named += len(found)
        row = {
            "part": "names",
            "of": what,
            "draws": draws_of,
            "precision": right / max(named, 1),
            "recall": right / draws_of,
        }
        rows.append(row)
        bars += [Bar(f"names, {what}, {each}", row[each], least=0.9) for each in ("precision", "recall")]
    return rows, [] if quick else bars


RATE, BLOCK_ROWS, BEFORE_ROWS = 0.001, 500, 20_000
PEER_STREAMS = 3


def delay(quick: bool, peers: bool) -> Found:
    """Rows until a drift is seen, over the rows that are needed."""
    draws, where = np.random.default_rng(3), {"a0": 1, "a1": 1}
    reference = window(draws, 50_000, {})
    settings: dict[str, Any] = {"attributes": ATTRIBUTES, "metrics": ["m"], "block_rows": BLOCK_ROWS}
    share = float(np.mean((reference["a0"] == 1) & (reference["a1"] == 1)))
    rows, bars, named = [], [], []
    kept: dict[float, list[list[dict[str, np.ndarray]]]] = {}
    for slower in (2.0,) if quick else (2.0, 1.0, 0.7):
        ratios, delays, right = [], [], 0
        for _ in range(2 if quick else 5):
            stream = [window(draws, BEFORE_ROWS, {}), window(draws, 40_000, where, slower=slower)]
            detector = dt.DriftDetector(reference, false_alarms=RATE, **settings)
            seen = first_alarm(detector, stream)
            # Ville: who is wrong with chance p at most must gather ln(1 / p) nats; a normal shift gives d²/2 in a row.
            least = math.log(detector.tests / RATE) / (share * slower**2 / 2)
            delays.append(seen.rows - BEFORE_ROWS if seen else math.inf)
            ratios.append(delays[-1] / (least + BLOCK_ROWS))
            right += seen is not None and [each.values for each in seen.findings] == [where]
            kept.setdefault(slower, []).append(stream)
        row = {"part": "delay", "of": f"{slower:g} deviations", "rows": statistics.median(delays), "needed": least}
        rows.append(row | {"over needed": statistics.median(ratios), "named": right / len(ratios)})
        bars.append(Bar(f"delay, {slower:g} deviations, over what is needed", statistics.median(ratios), most=1.0))
        named.append(right / len(ratios))
    bars.append(Bar("delay, named, and nothing else", statistics.mean(named), least=0.9))
    blocks = 20 if quick else 1_000
    quiet = dt.DriftDetector(reference, false_alarms=0.01, **settings)
    quiet.update(window(draws, blocks * BLOCK_ROWS, {}))
    bars.append(Bar("delay, blocks with a false alarm at 1%", len(quiet.alarms) / blocks, most=0.01))
    rows.append({"part": "delay", "of": "no drift", "draws": blocks, "false alarms": len(quiet.alarms) / blocks})
    return (rows + beside(reference, kept) if peers else rows), [] if quick else bars


def first_alarm(detector: dt.DriftDetector, stream: list[dict[str, np.ndarray]]) -> Any:
    """The first alarm of a stream after it began to drift."""
    before = len(detector.update(stream[0]))
    for start in range(0, len(stream[1]["m"]), BLOCK_ROWS):
        detector.update({name: column[start : start + BLOCK_ROWS] for name, column in stream[1].items()})
        if len(detector.alarms) > before:
            return detector.alarms[before]
    return None


def beside(
    reference: dict[str, np.ndarray], kept: dict[float, list[list[dict[str, np.ndarray]]]]
) -> list[dict[str, Any]]:
    """What River's detectors, on the metric, and Evidently, on windows, say of the first streams of each size; they
    name no combination."""
    rows = []
    names = [*ATTRIBUTES, "m"]
    shown = [(slower, parts) for slower, streams in kept.items() for parts in streams[:PEER_STREAMS]]
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "reference.npz", **{name: reference[name] for name in names})
        for number, (_, parts) in enumerate(shown):
            joined = {name: np.concatenate([part[name] for part in parts]) for name in names}
            np.savez(Path(folder) / f"stream-{number:02}.npz", **joined, begins=BEFORE_ROWS)
        for part in ("river", "evidently"):
            said = drift_peers.ask(part, Path(folder))
            if "seen" not in said:
                rows.append({"part": "delay", "of": part, "rows": said["reason"]})
            for peer, seen in said.get("seen", {}).items():
                rows += [_peer_row(peer, slower, seen, shown) for slower in kept]
    return rows


def _peer_row(peer: str, slower: float, seen: list[list[int]], shown: list[tuple[float, Any]]) -> dict[str, Any]:
    mine = [each for each, (size, _) in zip(seen, shown, strict=True) if size == slower]
    after = [min((at - BEFORE_ROWS for at in each if at > BEFORE_ROWS), default=math.inf) for each in mine]
    median = statistics.median(after)
    return {
        "part": "delay",
        "of": f"{peer}, {slower:g} deviations",
        "rows": "never" if math.isinf(median) else median,
        "draws": len(mine),
        "false alarms": sum(at <= BEFORE_ROWS for each in mine for at in each) / len(mine),
        "named": 0.0,
    }


def cpu_seconds(act: Callable[[], Any]) -> float:
    """CPU seconds that something takes."""
    began = time.process_time()
    act()
    return time.process_time() - began


PARTS: dict[str, Callable[[bool, bool], Found]] = {
    "streams": streams,
    "hitters": hitters,
    "growth": growth,
    "null": null,
    "names": names,
    "delay": delay,
}

if __name__ == "__main__":
    sys.exit(main())
