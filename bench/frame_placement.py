"""Where fused loops run on a machine with a CUDA device: never much slower than the better of host and device, and at
the link's rate where the data are larger than what the device may hold.

`python bench/frame_placement.py [--quick] [--check]`. Black-Scholes (27 operations, 48 bytes an element) and a line
(2 operations, 16 bytes), of 2^10 to 2^28 elements: a `df.fuse`d function as users call it, once it has settled, beside
the same loops always on the host, on all its cores, and always on the device, by turns; medians of 5 to 25. The link
is what pinned memory alone carries. `--quick` takes small sizes and torch's CPU for a device, and writes nothing.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy
import torch
from frames import FUNCTIONS, array_inputs, listed
from reporting import Bar, finish

import dovetail.frame as df
from dovetail.frame import device_loops, runner
from dovetail.frame.device_link import link_rates
from dovetail.frame.placement import PlaceSeconds

SETTLE = 9
ROUNDS, MOST_ROUNDS, SECONDS_EACH = 5, 25, 3.0
LIMIT = 4 << 30
LEAST_TIMED = 0.005
# Of smaller calls some are NumPy's own, which has no place.
LEAST_SENT = 1 << 16


def line(x):
    return 2.5 * x + 1.0


def inputs_of(name: str, rows: int) -> tuple[numpy.ndarray, ...]:
    if name == "line":
        return (numpy.random.default_rng(0).normal(size=rows),)
    small = array_inputs(name, min(rows, 1 << 22))
    return tuple(numpy.resize(each, rows) for each in small)


def always(place: str, fused: Any, arrays: tuple[numpy.ndarray, ...]) -> Callable[[], Any]:
    """The same call with its loops always at one place."""

    def call() -> Any:
        chosen = runner.choose_place
        runner.choose_place = lambda *_: (place, PlaceSeconds())
        try:
            return fused(*arrays)
        finally:
            runner.choose_place = chosen

    return call


def timed(work: Callable[[], Any]) -> float:
    """Seconds of a call; of short ones, of many."""
    began = time.perf_counter()
    work()
    count = max(1, round(LEAST_TIMED / max(time.perf_counter() - began, 1e-7)))
    began = time.perf_counter()
    for _ in range(count):
        work()
    return (time.perf_counter() - began) / count


def measure(name: str, function: Callable[..., Any], rows: int, device: str) -> dict[str, Any]:
    arrays = inputs_of(name, rows)
    fused = df.fuse(function)
    fused(*arrays)
    assert fused.wait(), fused.explain()
    for _ in range(SETTLE):
        fused(*arrays)
    ways = {"fused": lambda: fused(*arrays), "host": always("host", fused, arrays)}
    if device == "cuda" and rows >= LEAST_SENT:
        ways["device"] = always("cuda", fused, arrays)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    began = time.perf_counter()
    for number in range(MOST_ROUNDS + 1):
        if number > ROUNDS and time.perf_counter() - began > SECONDS_EACH:
            break
        # There and back: what ran before leaves its traces in the caches.
        for way in list(ways) if number % 2 else reversed(list(ways)):
            seconds[way].append(timed(ways[way]))
    found = {way: statistics.median(each[1:]) for way, each in seconds.items()}
    answers = zip(listed(fused(*arrays)), listed(function(*arrays)), strict=True) if rows <= 1 << 22 else ()
    apart = max((float(numpy.max(numpy.abs(a - b) / numpy.maximum(numpy.abs(b), 1))) for a, b in answers), default=0.0)
    kernels = fused._last.prepared.kernels.values()
    return {
        "what": name,
        "elements": rows,
        **{f"{way}, s": each for way, each in found.items()},
        "ran on": next(iter(kernels)).place,
        "times the better": found["fused"] / min(found["host"], found.get("device", found["host"])),
        "difference": apart,
    }


def pin(array: numpy.ndarray) -> numpy.ndarray:
    held = torch.empty(array.shape, dtype=torch.float64, pin_memory=True).numpy()
    held[:] = array
    return held


def products(spot, strike, years, rate):
    return (spot * strike + years * rate).sum()


def past_the_limit(name: str, arrays: tuple[numpy.ndarray, ...], how: str, limit: int, device: str) -> dict[str, Any]:
    """Bytes a second through a device that holds less than the data, beside what the link carries. Pinned arrays lie in
    memory that the link reads by itself; others are copied there first, by the host. The
    caller drops each result before it asks for the next but one, as a loop does: the first two lie in new memory."""
    fused = df.fuse({"black_scholes": FUNCTIONS["black_scholes"], "products": products}[name])
    small = tuple(each[: 1 << 16] for each in arrays)
    fused(*small)
    assert fused.wait(), fused.explain()
    (loop,) = fused._last.prepared.plan.loops()
    by_number = {node: arrays[number] for node, number, _ in fused._last.sources}
    inputs = [by_number[node] for node in loop.inputs]
    seconds, result = list[float](), None
    for _ in range(2 * ROUNDS):
        began = time.perf_counter()
        result = device_loops.run_on_device(loop, inputs, [], arrays[0].shape, device=device, memory_bytes=limit)
        seconds.append(time.perf_counter() - began)
    del result
    took = statistics.median(seconds)
    there = sum(each.nbytes for each in arrays)
    rates = link_rates(wait=True)
    least = rates.least_seconds(there, len(loop.outputs) * arrays[0].nbytes, 0) if rates else took
    return {"what": f"{name}, {how} memory, within {limit >> 30} GiB", "elements": len(arrays[0]), "device, s": took,
            "the first two calls, s": max(seconds[:2]),
            "GB/s there": there / took / 1e9, "share of the link": least / took}  # fmt: skip


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--check", action="store_true", help="end with 1 where a bar is missed")
    arguments.add_argument("--quick", action="store_true", help="small sizes, torch's CPU; writes nothing")
    arguments.add_argument("--bits", type=int, default=28, help="the largest size, as a power of two")
    chosen = arguments.parse_args()
    device = "cpu" if chosen.quick else "cuda"
    if not chosen.quick and link_rates(wait=True) is None:
        sys.exit("bench/frame_placement.py must have a CUDA device, and there is none; --quick runs without.")
    sizes = (10, 17) if chosen.quick else range(10, chosen.bits + 1, 2)
    functions = {"black_scholes": FUNCTIONS["black_scholes"], "line": line}
    rows = [measure(name, each, 1 << bits, device) for name, each in functions.items() for bits in sizes]
    bars = [
        Bar(f"{row['what']}, 2^{row['elements'].bit_length() - 1}, times the better place", row["times the better"],
            most=1.1)
        for row in rows
    ]  # fmt: skip
    bars.append(Bar("largest relative difference to NumPy", max(row["difference"] for row in rows), most=1e-12))
    limit = LIMIT if not chosen.quick else 1 << 20
    ordinary = inputs_of("black_scholes", 1 << (chosen.bits if not chosen.quick else 17))
    given = {"ordinary": ordinary} if chosen.quick else {"ordinary": ordinary, "pinned": tuple(map(pin, ordinary))}
    for how, arrays in given.items():
        for name in ("products", "black_scholes"):
            rows.append(past_the_limit(name, arrays, how, limit, device))
            bars.append(Bar(f"{rows[-1]['what']}, share of the link", rows[-1]["share of the link"], least=0.8))
    sys.exit(finish("frame_placement", rows, bars, check=chosen.check, quick=chosen.quick))


if __name__ == "__main__":
    main()
