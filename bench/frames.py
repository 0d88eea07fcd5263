"""Fused arrays and tables beside what people use: NumPy, pandas, numexpr, numba, torch.compile, Polars and DuckDB.

`python bench/frames.py [--quick] [--check]`. 10 million rows, two threads for everybody, seconds by the clock, medians
of runs by turns after one that is not counted. Black-Scholes and Haversine are Weld's, as are the crime index (filter,
dot product, exp, group-by), cleaning (zip codes cut to five digits, the distinct ones) and births (names that contain
a text, by year and sex). Whoever cannot do one, or is not installed, is left out. A table begins from nothing in each
run: what `df.table` numbers, it numbers again. `first` and `memory` are processes of their own, with an empty cache of
libraries. The feed stage is the Black-Scholes of 20,000 options an item, by four threads and by four processes.
"""

import argparse
import contextlib
import importlib
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pandas
import psutil
from fetched import fetched
from reporting import Bar, finish
from scipy.special import erf

import dovetail as dt
import dovetail.frame as df
from dovetail.frame import runner
from dovetail.vocabulary import FeedPlan, StagePlan

THREADS = 2
ROOT2 = 2**-0.5


def black_scholes(spot, strike, years, volatility, rate=0.03):
    """Prices of calls and puts."""
    root = volatility * numpy.sqrt(years)
    d1 = (numpy.log(spot / strike) + (rate + volatility * volatility / 2) * years) / root
    one, two = 0.5 + 0.5 * erf(d1 * ROOT2), 0.5 + 0.5 * erf((d1 - root) * ROOT2)
    discounted = strike * numpy.exp(-rate * years)
    call = spot * one - discounted * two
    return call, call - spot + discounted


def haversine(latitude, longitude):
    """Kilometres from one place."""
    a = numpy.sin((latitude - 0.7) / 2) ** 2 + numpy.cos(latitude) * 0.76 * numpy.sin((longitude - 1.2) / 2) ** 2
    return 12742 * numpy.arcsin(numpy.sqrt(a))


def installed(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def array_rivals(name: str, arrays: tuple[numpy.ndarray, ...]) -> dict[str, Callable[[], Any]]:
    """How others compute the same, from the same arrays."""
    found: dict[str, Callable[[], Any]] = {}
    import torch

    torch.set_num_threads(THREADS)
    tensors = [torch.from_numpy(array) for array in arrays]

    def torch_scholes(spot, strike, years, volatility, rate=0.03):
        root = volatility * torch.sqrt(years)
        d1 = (torch.log(spot / strike) + (rate + volatility * volatility / 2) * years) / root
        one, two = 0.5 + 0.5 * torch.erf(d1 * ROOT2), 0.5 + 0.5 * torch.erf((d1 - root) * ROOT2)
        discounted = strike * torch.exp(-rate * years)
        call = spot * one - discounted * two
        return call, call - spot + discounted

    def torch_haversine(latitude, longitude):
        a = torch.sin((latitude - 0.7) / 2) ** 2 + torch.cos(latitude) * 0.76 * torch.sin((longitude - 1.2) / 2) ** 2
        return 12742 * torch.arcsin(torch.sqrt(a))

    compiled = torch.compile(torch_scholes if name == "black_scholes" else torch_haversine, dynamic=False)
    found["torch.compile"] = lambda: compiled(*tensors)
    if numba := installed("numba"):
        found["numba"] = numba_version(numba, name, arrays)
    if (numexpr := installed("numexpr")) and name == "haversine":  # it has no erf
        numexpr.set_num_threads(THREADS)
        names = dict(zip(("latitude", "longitude"), arrays, strict=True))
        text = (
            "12742 * arcsin(sqrt(sin((latitude - 0.7) / 2)**2 + cos(latitude) * 0.76 * sin((longitude - 1.2) / 2)**2))"
        )
        found["numexpr"] = lambda: numexpr.evaluate(text, names)
    return found


def numba_version(numba: Any, name: str, arrays: tuple[numpy.ndarray, ...]) -> Callable[[], Any]:
    import math

    numba.set_num_threads(THREADS)

    @numba.njit(parallel=True)
    def scholes(spot, strike, years, volatility):
        call, put = numpy.empty_like(spot), numpy.empty_like(spot)
        for i in numba.prange(len(spot)):
            root = volatility[i] * math.sqrt(years[i])
            d1 = (math.log(spot[i] / strike[i]) + (0.03 + volatility[i] * volatility[i] / 2) * years[i]) / root
            one, two = 0.5 + 0.5 * math.erf(d1 * ROOT2), 0.5 + 0.5 * math.erf((d1 - root) * ROOT2)
            discounted = strike[i] * math.exp(-0.03 * years[i])
            call[i] = spot[i] * one - discounted * two
            put[i] = call[i] - spot[i] + discounted
        return call, put

    @numba.njit(parallel=True)
    def distance(latitude, longitude):
        found = numpy.empty_like(latitude)
        for i in numba.prange(len(latitude)):
            s, t = math.sin((latitude[i] - 0.7) / 2), math.sin((longitude[i] - 1.2) / 2)
            found[i] = 12742 * math.asin(math.sqrt(s * s + math.cos(latitude[i]) * 0.76 * t * t))
        return found

    return lambda: (scholes if name == "black_scholes" else distance)(*arrays)


def array_inputs(name: str, rows: int) -> tuple[numpy.ndarray, ...]:
    generator = numpy.random.default_rng(0)
    if name == "haversine":
        return generator.uniform(-1.5, 1.5, rows), generator.uniform(-3, 3, rows)
    spot, strike = generator.uniform(10, 50, size=(2, rows))
    return spot, strike, generator.uniform(1, 2, rows), generator.uniform(0.1, 0.5, rows)


FUNCTIONS = {"black_scholes": black_scholes, "haversine": haversine}


def measure_arrays(name: str, rows: int, rounds: int, rivals: bool) -> dict[str, Any]:
    arrays, function = array_inputs(name, rows), FUNCTIONS[name]
    fused = df.fuse(function)
    fused(*arrays)
    assert fused.wait(), fused.explain()
    ways: dict[str, Callable[[], Any]] = {"frames": lambda: fused(*arrays), "numpy": lambda: function(*arrays)}
    ways |= array_rivals(name, arrays) if rivals else {}
    pairs = zip(listed(fused(*arrays)), listed(function(*arrays)), strict=True)
    apart = max(float(numpy.max(numpy.abs(found - wanted))) for found, wanted in pairs)
    return {"what": name, "rows": rows, **seconds_of(ways, rounds), "largest difference": apart}


def listed(value: Any) -> Any:
    return value if isinstance(value, tuple) else (value,)


def seconds_of(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds + 1):
        for way, work in ways.items():
            began = time.perf_counter()
            work()
            if number:
                times[way].append(time.perf_counter() - began)
    return {f"{way}, s": statistics.median(each) for way, each in times.items()}


STATES = numpy.array([f"{a}{b}" for a in "ABCDEFG" for b in "KLMNOPQ"])


def crime(rows: int, rounds: int) -> tuple[dict[str, Any], float]:
    generator = numpy.random.default_rng(1)
    columns = {
        "state": generator.integers(0, len(STATES), rows).astype("i4"),
        "population": generator.integers(0, 1_000_000, rows),
        "adults": generator.uniform(0, 1e6, rows),
        "robberies": generator.uniform(0, 1e3, rows),
    }
    frame = pandas.DataFrame(columns)

    def by_pandas():
        large = frame[frame.population > 500_000]
        index = large.population * 1e-7 + large.adults * 2e-7 - large.robberies * 2e-4
        return large.assign(index=numpy.exp(index)).groupby("state")[["index"]].sum()

    def by_frames():
        t = df.table(frame)
        index = t.population * 1e-7 + t.adults * 2e-7 - t.robberies * 2e-4
        return t[t.population > 500_000].assign(index=numpy.exp(index)).groupby("state")[["index"]].sum()

    ways = {"frames": by_frames, "pandas": by_pandas}
    if polars := installed("polars"):
        table = polars.DataFrame(columns).lazy()
        at = polars.col
        index = (at("population") * 1e-7 + at("adults") * 2e-7 - at("robberies") * 2e-4).exp().alias("index")
        query = table.filter(at("population") > 500_000).with_columns(index).group_by("state").agg(at("index").sum())
        ways["polars"] = lambda: query.sort("state").collect()
    if duckdb := installed("duckdb"):
        connection = duckdb.connect(config={"threads": THREADS})
        connection.register("crimes", frame)
        text = (
            "select state, sum(exp(population * 1e-7 + adults * 2e-7 - robberies * 2e-4)) from crimes "
            "where population > 500000 group by state order by state"
        )
        ways["duckdb"] = lambda: connection.execute(text).fetchall()
    by_frames()
    settle()
    apart = float(numpy.max(numpy.abs(by_frames()["index"] / by_pandas()["index"] - 1)))
    return {"what": "crime", "rows": rows, **seconds_of(ways, rounds), "largest difference": apart}, apart


def cleaning(rows: int, rounds: int) -> tuple[dict[str, Any], float]:
    generator = numpy.random.default_rng(2)
    known = numpy.array(
        [f"{number:05d}" for number in range(10_000, 10_200)] + ["00000"] + [f"94305-{n}" for n in range(99)]
    )
    frame = pandas.DataFrame({"zip": pandas.array(generator.choice(known, rows), dtype="str")})

    def by_pandas():
        cut = frame.zip.str.slice(0, 5)
        return cut[cut != "00000"].unique()

    def by_frames():
        cut = df.table(frame).zip.str.slice(0, 5)
        return cut[cut != "00000"].unique()

    same = float(list(by_frames()) == list(by_pandas()))
    ways = {"frames": by_frames, "pandas": by_pandas}
    return {"what": "cleaning", "rows": rows, **seconds_of(ways, rounds), "equal": same}, same


def births(rows: int, rounds: int) -> tuple[dict[str, Any], float]:
    generator = numpy.random.default_rng(3)
    names = numpy.array(
        [f"{a}{b}" for a in ("Lesl", "Ann", "Joh", "Mari", "Pet") for b in ("ey", "ie", "a", "y", "e", "an", "el")]
    )
    frame = pandas.DataFrame(
        {
            "name": pandas.array(generator.choice(names, rows), dtype="str"),
            "sex": pandas.array(generator.choice(["F", "M"], rows), dtype="str"),
            "year": generator.integers(1880, 2011, rows),
            "births": generator.integers(1, 1000, rows),
        }
    )

    def by_pandas():
        return frame[frame.name.str.contains("Lesl", regex=False)].groupby(["year", "sex"])[["births"]].sum()

    def by_frames():
        t = df.table(frame)
        return t[t.name.str.contains("Lesl", regex=False)].groupby(["year", "sex"])[["births"]].sum()

    by_frames()
    settle()
    same = float(by_frames().equals(by_pandas()))
    ways = {"frames": by_frames, "pandas": by_pandas}
    return {"what": "births", "rows": rows, **seconds_of(ways, rounds), "equal": same}, same


def settle() -> None:
    """Until everything is compiled that was asked for."""
    from dovetail.frame import kernels

    for kernel in list(kernels._COMPILER._kernels.values()):
        kernel.wait(120)


def first_answer(rows: int) -> dict[str, float]:
    """In a process of its own: the first call beside NumPy's, the compiler's seconds, memory beyond what must be."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, __file__, "--one", str(rows)],
            env={**os.environ, "DOVETAIL_CACHE": folder}, capture_output=True, text=True, check=True,
        )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def one(rows: int) -> None:
    """What `first_answer` runs."""
    arrays = array_inputs("black_scholes", rows)
    fused = df.fuse(black_scholes)
    before = psutil.Process().memory_info().rss
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
    began = time.perf_counter()
    found = fused(*arrays)
    first = time.perf_counter() - began
    compiled = fused.wait(120)
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    beyond = int(peak) * 1024 - before - sum(array.nbytes for array in found)
    began = time.perf_counter()
    black_scholes(*arrays)
    plain = time.perf_counter() - began
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = usage.ru_utime + usage.ru_stime
    print(json.dumps({"first": first, "numpy": plain, "compiler": seconds, "beyond": beyond, "compiled": compiled}))


def small_calls() -> list[dict[str, Any]]:
    """1,000 rows, calls by turns."""
    rows = []
    for name, function in FUNCTIONS.items():
        arrays = array_inputs(name, 1000)
        fused = df.fuse(function)
        fused(*arrays)
        fused.wait()
        for _ in range(12):
            fused(*arrays)
        found = seconds_of({"frames": lambda: fused(*arrays), "numpy": lambda: function(*arrays)}, 400)  # noqa: B023
        rows.append({"what": f"{name}, small", "rows": 1000, **found})
    return rows


def price(item):
    return black_scholes(*item)


fused_price = df.fuse(price)


AHEAD_BYTES = 8 << 20  # 25 items or so: without a limit both hold what their budget of gigabytes allows
STAGES = {"frames, 4 threads": (fused_price, "thread"), "numpy, 4 processes": (price, "process")}


def feed_stage(items: int) -> dict[str, Any]:
    """Items a second and memory of four workers of each kind, each in a process of its own."""
    found: dict[str, Any] = {"what": "feed stage", "rows": 20_000}
    for way in STAGES:
        words = [sys.executable, __file__, "--stage", way, "--items", str(items)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        found |= json.loads(done.stdout.splitlines()[-1])
    return found


def one_stage(way: str, items: int) -> None:
    """What `feed_stage` runs."""
    arrays, (function, worker) = array_inputs("black_scholes", 20_000), STAGES[way]
    if worker == "thread":
        function(arrays)
        function.wait()
    list(dt.feed([arrays] * 2).map(function, name="price").open())  # what feeds import counts for neither way
    feed = dt.feed([arrays] * items).map(function, name="price")
    stages = tuple(
        StagePlan(name=name, worker=worker, workers=4 if name == "price" else 1, buffer_bytes=AHEAD_BYTES)
        for name in ("source", "price")
    )
    before, most = held_bytes(), 0
    with feed.open(FeedPlan(stages=stages)) as running:
        stream = iter(running)
        next(stream)
        began, count = time.perf_counter(), 0
        for _ in stream:
            count += 1
            if count % max(1, items // 12) == 0:
                most = max(most, held_bytes() - before)
        rate = count / (time.perf_counter() - began)
    print(json.dumps({f"{way}, items a second": rate, f"{way}, MB": most / 1e6}))


def held_bytes() -> int:
    """What this process and those that it started hold: pages that several share count once."""
    own, found = psutil.Process(), 0
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended since
            found += process.memory_full_info().pss
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--check", action="store_true", help="end with 1 where a bar is missed")
    arguments.add_argument("--quick", action="store_true", help="few rows, NumPy and pandas alone; writes nothing")
    arguments.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments.add_argument("--stage", help=argparse.SUPPRESS)
    arguments.add_argument("--items", type=int, help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.stage:
        one_stage(chosen.stage, chosen.items)
        return
    if chosen.one:
        one(chosen.one)
        return
    os.environ["DOVETAIL_FRAME_THREADS"] = str(THREADS)
    assert runner.thread_count() == THREADS, "nothing may have asked before"
    rows, rounds = (100_000, 1) if chosen.quick else (10_000_000, 5)
    table: list[dict[str, Any]] = []
    bars: list[Bar] = []
    with contextlib.ExitStack() as stack:
        if not chosen.quick:
            stack.enter_context(fetched("numexpr", "llvmlite", "numba"))
        by_function = [measure_arrays(name, rows, rounds, rivals=not chosen.quick) for name in FUNCTIONS]
    for name, found in zip(FUNCTIONS, by_function, strict=True):
        table.append(found)
        others = [found[key] for key in found if key.endswith(", s") and key not in ("frames, s", "numpy, s")]
        bars.append(Bar(f"{name}, times faster than numpy", found["numpy, s"] / found["frames, s"], least=8.0))
        if others:
            bars.append(Bar(f"{name}, times faster than the best other", min(others) / found["frames, s"], least=1.5))
    found, apart = crime(rows, rounds)
    table.append(found)
    bars.append(Bar("crime, relative difference to pandas", apart, most=1e-12))
    if "polars, s" in found:
        bars.append(Bar("crime, times faster than polars", found["polars, s"] / found["frames, s"], least=1.3))
    for work in (cleaning, births):
        found, same = work(rows, rounds)
        table.append(found)
        bars.append(Bar(f"{found['what']}, equal to pandas", same, least=1.0))
        bars.append(
            Bar(f"{found['what']}, times faster than pandas", found["pandas, s"] / found["frames, s"], least=3.0)
        )
    for found in small_calls():
        table.append(found)
        bars.append(Bar(f"{found['what']}, share of numpy's time", found["frames, s"] / found["numpy, s"], most=1.1))
    firsts = [first_answer(rows) for _ in range(1 if chosen.quick else 3)]
    first = {name: statistics.median(each[name] for each in firsts) for name in firsts[0]}
    table.append({"what": "first call", "rows": rows, "frames, s": first["first"], "numpy, s": first["numpy"]})
    bars.append(Bar("first answer, share of numpy's time", first["first"] / first["numpy"], most=1.0))
    bars.append(Bar("compiler, seconds of CPU", first["compiler"], most=0.5))
    bars.append(Bar("memory beyond inputs and outputs, MiB", first["beyond"] / 2**20, most=64.0))
    stage = feed_stage(16 if chosen.quick else 600)
    table.append(stage)
    rates = [stage[f"{way}, items a second"] for way in ("frames, 4 threads", "numpy, 4 processes")]
    sizes = [stage[f"{way}, MB"] for way in ("frames, 4 threads", "numpy, 4 processes")]
    bars.append(Bar("feed stage, times the items of processes", rates[0] / rates[1], least=1.8))
    bars.append(Bar("feed stage, share of the processes' memory", sizes[0] / sizes[1], most=0.25))
    code = finish("frames", table, bars, check=chosen.check, quick=chosen.quick)
    sys.exit(code)


if __name__ == "__main__":
    main()
