"""`dovetail serve` over real HTTP: batching beside one request a call, too much at once, a swap and a killed replica.

`python bench/server.py [batching] [overload] [losses] [forecast] [mix] [--quick] [--check]`

A perceptron of six layers of 1,024 is trained for a step by `dt.run` and served by `dovetail serve` in processes of its
own; another process asks, each request a row, at moments drawn beforehand (Poisson), whether answers have come or not.
`batching`: the highest of some rates at which 99 of 100 answers come within the bound, with calls of one row and of up
to 32, three times by turns. `overload`: more than can be answered for a while, then little: how soon are refusals told,
and are all answered afterwards? `losses`: 10,000 requests through a kill and a swap: each is answered once, rightly, or
refused. `forecast`: the p99 that the plan's simulation expects of six configurations at 70% of what they can do, beside
what is measured. `mix`: what planned replicas cost on a simulated cluster of three kinds at twelve rates, beside the
best of one kind, both under the same promise. `--quick` asks little and writes nothing.
"""

import argparse
import asyncio
import contextlib
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy
import torch
from reporting import Bar, finish
from torch import nn

import dovetail as dt
from dovetail.planning.serving import KindOffer, LatencyCurve, ReplicaGroup, arrivals_at, forecast, plan_serving
from dovetail.serve.server.measuring import measure_latency

ROWS = ("batching", "overload", "losses", "forecast", "mix")
BOUND = 0.1  # seconds within which 99 of 100 answers come
TIMES, TOLD, OFF, SAVED = 4.0, 0.05, 0.2, 0.2
WIDTH = 1024


def perceptron(width: int = WIDTH, seed: int = 0) -> dt.Training:
    layers = [layer for _ in range(5) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(nn.Linear(16, width), nn.ReLU(), *layers, nn.Linear(width, 4))
    batch = [torch.randn(8, 16), torch.randint(4, (8,))]
    return dt.Training(
        model=model,
        batches=[batch],
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        evaluate=lambda model: {"accuracy": 1.0},
    )


@contextlib.contextmanager
def served(store: Path, *words: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "dovetail", "serve", "--best", "accuracy", "--store", str(store), "--port", "0", *words],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if found := re.match(r"(http://\S+)/predict", line):
                yield found[1], process
                break
        else:
            raise SystemExit("the server must start")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


async def asked(address: str, moments: numpy.ndarray, rows: numpy.ndarray) -> list[dict[str, Any]]:
    """What came of a request at each moment."""
    found: list[dict[str, Any]] = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        began = time.perf_counter()

        async def ask(number: int) -> None:
            await asyncio.sleep(max(0.0, began + moments[number] - time.perf_counter()))
            sent = time.perf_counter()
            body = {"inputs": [rows[number % len(rows)].tolist()]}
            try:
                async with session.post(address + "/predict", json=body) as said:
                    content = await said.json()
                    found.append({"number": number, "status": said.status, "said": content})
            except aiohttp.ClientError as error:
                found.append({"number": number, "status": 0, "said": str(error)})
            found[-1]["seconds"] = time.perf_counter() - sent

        await asyncio.gather(*(ask(number) for number in range(len(moments))))
    return found


def poisson(rate: float, seconds: float, *, seed: int) -> numpy.ndarray:
    draw = numpy.random.default_rng(seed)
    gaps = draw.exponential(1 / rate, int(rate * seconds * 1.5) + 10)
    moments = numpy.cumsum(gaps)
    return moments[moments < seconds]


def p99(found: list[dict[str, Any]]) -> float:
    return float(numpy.quantile([each["seconds"] for each in found], 0.99))


def highest_rate(address: str, rates: list[float], seconds: float, rows: numpy.ndarray) -> float:
    """The last of these rates, one after another, at which all are answered and 99 of 100 within the bound."""
    best = 0.0
    asyncio.run(asked(address, poisson(20, 1.0, seed=0), rows))  # first answers take longer
    for rate in rates:
        found = asyncio.run(asked(address, poisson(rate, seconds, seed=int(rate)), rows))
        refused = sum(each["status"] != 200 for each in found)
        print(f"{rate:.0f} a second: 99% within {p99(found):.3f} s, {refused} refused", file=sys.stderr)
        if refused or p99(found) > BOUND:
            break
        best = rate
    return best


def batching(store: Path, rows: numpy.ndarray, *, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """How many a second, with and without."""
    rates = [20.0, 40.0] if quick else [20.0 * 1.5**step for step in range(12)]
    seconds, rounds = (1.0, 1) if quick else (3.0, 3)
    single, batched = [], []
    for _ in range(rounds):
        with served(store, "--batch-rows", "1", "--wait", "0ms", "--within", "5s") as (address, _process):
            single.append(highest_rate(address, rates, seconds, rows))
        with served(store, "--batch-rows", "32", "--within", "5s") as (address, _process):
            batched.append(highest_rate(address, rates, seconds, rows))
    one, many = statistics.median(single), statistics.median(batched)
    row = {"row": "batching", "one a call, 1/s": one, "batched, 1/s": many, "times": many / max(one, 1e-9)}
    return [row], [Bar(f"batched at a p99 of {BOUND:g} s, times as many", row["times"], least=TIMES)]


def overload(store: Path, rows: numpy.ndarray, *, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """Too much for a while."""
    rate, seconds = (200.0, 2.0) if quick else (600.0, 8.0)
    with served(store, "--batch-rows", "1", "--wait", "0ms", "--within", "200ms") as (address, _process):
        asyncio.run(asked(address, poisson(20, 1.0, seed=0), rows))  # what a call takes must be known
        during = asyncio.run(asked(address, poisson(rate, seconds, seed=1), rows))
        after = asyncio.run(asked(address, poisson(20, 3.0, seed=2), rows))
    refused = [each["seconds"] for each in during if each["status"] == 429]
    row = {
        "row": "overload",
        "asked, 1/s": rate,
        "answered": sum(each["status"] == 200 for each in during),
        "refused": len(refused),
        "told within, 99%": float(numpy.quantile(refused, 0.99)) if refused else 0.0,
        "told within, 50%": float(numpy.quantile(refused, 0.5)) if refused else 0.0,
        "others": sum(each["status"] not in (200, 429, 504) for each in during),
        "answered afterwards": sum(each["status"] == 200 for each in after) / len(after),
    }
    return [row], [
        Bar("overload, refusals told within (99%)", row["told within, 99%"], most=TOLD),
        Bar("overload, refused", row["refused"], least=1),
        Bar("overload, share answered afterwards", row["answered afterwards"], least=1.0),
        Bar("overload, answers of another kind", row["others"], most=0),
    ]


def losses(store: Path, rows: numpy.ndarray, *, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """A kill and a swap under way."""
    count, rate = (200, 60.0) if quick else (10_000, 150.0)
    model = dt.open_result(store).best("accuracy").model()
    with torch.inference_mode():
        expected = model(torch.from_numpy(rows)).numpy()
    moments = numpy.cumsum(numpy.random.default_rng(0).exponential(1 / rate, count))

    async def through(address: str, process: subprocess.Popen[str]) -> list[dict[str, Any]]:
        asking = asyncio.create_task(asked(address, moments, rows))
        await asyncio.sleep(moments[count // 4])
        os.kill(_replicas(process.pid)[0], signal.SIGKILL)
        await asyncio.sleep(moments[count // 4])
        async with aiohttp.ClientSession() as session, session.post(address + "/reload") as said:
            assert said.status == 200, await said.text()
        return await asking

    with served(store, "--replicas", "2", "--within", "10s") as (address, process):
        found = asyncio.run(through(address, process))
    answered = [each for each in found if each["status"] == 200]
    wrong = sum(
        not numpy.allclose(each["said"]["outputs"][0], expected[each["number"] % len(rows)], atol=1e-4)
        for each in answered
    )
    row = {
        "row": "losses",
        "asked": count,
        "answered": len(answered),
        "refused": sum(each["status"] in (429, 503, 504) for each in found),
        "wrong": wrong,
        "lost": count - len(answered) - sum(each["status"] in (429, 503, 504) for each in found),
        "99% within": p99(found),
    }
    return [row], [
        Bar("a kill and a swap, wrong answers", wrong, most=0),
        Bar("a kill and a swap, lost", row["lost"], most=0),
    ]


def forecasts(store: Path, rows: numpy.ndarray, *, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """Expected and measured, at 70% of what a configuration can do."""
    from dovetail.verbs.serve_model import OVERHEAD_SECONDS, ServedChoice

    found_rows, bars = [], []
    for width in (256,) if quick else (1024, 2048):
        home = store.parent / f"wide-{width}"
        dt.run(dt.grid(perceptron, width=width, steps=1), store=home, progress=False)
        choice = ServedChoice(store=home, metric="accuracy")
        curve = measure_latency(choice.choose()[0], choice.schema())
        for batch in (4,) if quick else (1, 4, 16):
            group = ReplicaGroup("replica", 1, batch, curve)
            rate = 0.7 * min(group.rate, 500.0)
            moments = poisson(rate, 2.0 if quick else 20.0, seed=batch)
            expected = forecast([group], list(moments), wait_seconds=0.002, overhead=OVERHEAD_SECONDS)
            words = ("--batch-rows", str(batch), "--wait", "2ms", "--within", "10s")
            with served(home, *words) as (address, _process):
                asyncio.run(asked(address, poisson(20, 1.0, seed=0), rows))
                measured = p99(asyncio.run(asked(address, moments, rows)))
            found_rows.append(
                {
                    "row": "forecast",
                    "width": width,
                    "rows a call": batch,
                    "asked, 1/s": rate,
                    "expected p99": expected.p99,
                    "measured p99": measured,
                    "off": abs(expected.p99 / measured - 1),
                }
            )
            bars.append(Bar(f"width {width}, {batch} rows a call, p99 off by", found_rows[-1]["off"], most=OFF))
    return found_rows, bars


MIXED = [
    KindOffer("large", 3.0, 3, {"plain": LatencyCurve(((1, 0.004), (64, 0.020)))}),
    KindOffer("small", 0.7, 6, {"plain": LatencyCurve(((1, 0.010), (64, 0.110)))}),
    KindOffer("cpu", 0.1, 12, {"plain": LatencyCurve(((1, 0.045), (16, 0.360)))}),
]


def mix(store: Path, rows: numpy.ndarray, *, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """What it costs where kinds may be mixed, and where they may not."""
    mixed, alike = [], []
    for rate in (600,) if quick else tuple(150 * 1.4**step for step in range(12)):
        arrivals = arrivals_at(rate, 1000 if quick else 6000)
        mixed.append(plan_serving(MIXED, arrivals, p99=0.15).price)
        alike.append(plan_serving(MIXED, arrivals, p99=0.15, is_uniform=True).price)
    ratios = [1 - ours / theirs for ours, theirs in zip(mixed, alike, strict=True)]
    row = {
        "row": "mix",
        "mixed, all rates": sum(mixed),
        "one kind, all rates": sum(alike),
        "saved": 1 - sum(mixed) / sum(alike),
        "saved at most": max(ratios),
    }
    return [row], [Bar("mixed kinds, saved over all rates", row["saved"], least=SAVED)]


def _replicas(server: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(server)], capture_output=True, text=True, check=False).stdout.split()
    return [int(pid) for pid in found if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("rows", nargs="*", default=list(ROWS), metavar="ROW", help=", ".join(ROWS))
    arguments.add_argument("--check", action="store_true", help="end with 1 where a bar is missed")
    arguments.add_argument("--quick", action="store_true", help="few requests; writes nothing")
    chosen = arguments.parse_args()
    if unknown := set(chosen.rows) - set(ROWS):
        arguments.error(f"ROW must be one of {', '.join(ROWS)}, got {', '.join(sorted(unknown))}")
    asked_rows = numpy.random.default_rng(0).normal(size=(64, 16)).astype("float32")
    makers = {"batching": batching, "overload": overload, "losses": losses, "forecast": forecasts, "mix": mix}
    rows, bars = [], []
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        dt.run(dt.grid(perceptron, steps=1), store=store, progress=False)
        for name in chosen.rows:
            found = makers[name](store, asked_rows, quick=chosen.quick)
            rows += found[0]
            bars += found[1]
    sys.exit(finish("server", rows, bars, check=chosen.check, quick=chosen.quick, part_by="row"))


if __name__ == "__main__":
    main()
