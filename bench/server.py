"""`dovetail serve` over real HTTP: batching beside one request a call, too much at once, a swap and a killed replica.

`python bench/server.py [batching] [overload] [losses] [forecast] [mix] [--quick] [--check]`

A perceptron of six layers of 1,024 is trained for a step by `dt.run` and served by `dovetail serve` in processes of its
own; another process asks, each request a row, at moments drawn beforehand (Poisson), whether answers have come or not.
`batching`: the highest rate at which 99 of 100 answers come within the bound, with calls of one row and of up to 32,
three times by turns, of an encoder of six layers. (Of the perceptron it is 2.7 times at most: with one row it
multiplies by vectors, in 1.3 ms, with 32 by matrices, in 15.) `overload`: more than can be answered for a while, then
little: how soon are refusals told, how many are taken and come too late, and are all answered afterwards? `losses`:
10,000 requests through a kill and a swap: each is answered once, rightly, or refused. `forecast`: the p99 that the
plan's simulation expects of six configurations at 70% of what they can do, beside what is measured; what the one who
asks takes of the cores is taken from the simulated ones. `mix`: what planned replicas cost on simulated clusters,
beside the best of one kind, both under the same promise: a cluster of three kinds at twelve rates, where nothing could
save more than a sixth (at half of the rates a device or two of one kind are the least there can be), and a hundred
drawn ones with few of each kind, at rates that one kind could still serve. `--quick` asks little and writes nothing.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
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

import httpx
import numpy
import torch
from open_loop import ask_all, poisson
from reporting import Bar, finish
from torch import nn

import dovetail as dt
from dovetail.planning.serving import KindOffer, LatencyCurve, ReplicaGroup, arrivals_at, forecast, plan_serving
from dovetail.serve.server.measuring import measure_server

ROWS = ("batching", "overload", "losses", "forecast", "mix")
BOUND = 0.1  # seconds within which 99 of 100 answers come
TIMES, TOLD, LATE, OFF, SAVED = 4.0, 0.05, 0.01, 0.2, 0.2
WIDTH = 1024


class Encoder(nn.Module):
    """Six layers of attention over a row's numbers, 64 wide: many small operations, of which a call of 32 rows does as
    many as a call of one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(1, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.classes = nn.Linear(64, 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.classes(self.layers(self.embed(rows[..., None])).mean(1))
        return found


def encoder(seed: int = 0) -> dt.Training:
    return _training(Encoder())


def perceptron(width: int = WIDTH, seed: int = 0) -> dt.Training:
    layers = [layer for _ in range(5) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(nn.Linear(16, width), nn.ReLU(), *layers, nn.Linear(width, 4))
    return _training(model)


def _training(model: nn.Module) -> dt.Training:
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


def p99(found: list[dict[str, Any]]) -> float:
    return float(numpy.quantile([each["seconds"] for each in found], 0.99))


def highest_rate(address: str, seconds: float, rows: numpy.ndarray, *, least: float, halvings: int) -> float:
    """The highest rate at which all are answered and 99 of 100 within the bound: doubled from the least until it is too
    much, then between the two by halves."""
    ask_all(address, poisson(20, 1.0, seed=0), rows)  # first answers take longer

    def keeps(rate: float) -> bool:
        found = ask_all(address, poisson(rate, seconds, seed=int(rate)), rows)
        refused = sum(each["status"] != 200 for each in found)
        print(f"{rate:.0f} a second: 99% within {p99(found):.3f} s, {refused} refused", file=sys.stderr)
        return not refused and p99(found) <= BOUND

    good, bad = 0.0, least
    while bad < 10_000 and keeps(bad):
        good, bad = bad, 2 * bad
    for _ in range(halvings if good else 0):
        middle = (good * bad) ** 0.5
        good, bad = (middle, bad) if keeps(middle) else (good, middle)
    return good


def batching(store: Path, rows: numpy.ndarray, *, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """How many a second, with and without."""
    home = store.parent / "encoder"
    dt.run(dt.grid(encoder, steps=1), store=home, progress=False)
    seconds, rounds, halvings = (0.5, 1, 0) if quick else (3.0, 3, 3)
    single, batched = [], []
    for _ in range(rounds):
        for words, best in ((("--batch-rows", "1", "--wait", "0ms"), single), (("--batch-rows", "32"), batched)):
            with served(home, *words, "--within", "5s") as (address, _process):
                best.append(highest_rate(address, seconds, rows, least=40.0, halvings=halvings))
    one, many = statistics.median(single), statistics.median(batched)
    row = {"row": "batching", "one a call, 1/s": one, "batched, 1/s": many, "times": many / max(one, 1e-9)}
    return [row], [Bar(f"batching, times as many at a p99 of {BOUND:g} s", row["times"], least=TIMES)]


def overload(store: Path, rows: numpy.ndarray, *, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """Too much for a while."""
    rate, seconds = (200.0, 2.0) if quick else (600.0, 8.0)
    with served(store, "--batch-rows", "1", "--wait", "0ms", "--within", "200ms") as (address, _process):
        ask_all(address, poisson(20, 1.0, seed=0), rows)  # what a call takes must be known
        during = ask_all(address, poisson(rate, seconds, seed=1), rows)
        after = ask_all(address, poisson(20, 3.0, seed=2), rows)
    refused = [each["seconds"] for each in during if each["status"] == 429]
    row = {
        "row": "overload",
        "asked, 1/s": rate,
        "answered": sum(each["status"] == 200 for each in during),
        "refused": len(refused),
        "told within, 99%": float(numpy.quantile(refused, 0.99)) if refused else 0.0,
        "told within, 50%": float(numpy.quantile(refused, 0.5)) if refused else 0.0,
        "too late": sum(each["status"] == 504 for each in during),
        "others": sum(each["status"] not in (200, 429, 504) for each in during),
        "answered afterwards": sum(each["status"] == 200 for each in after) / len(after),
    }
    return [row], [
        Bar("overload, refusals told within (99%)", row["told within, 99%"], most=TOLD),
        Bar("overload, refused", row["refused"], least=1),
        Bar("overload, share taken and too late", row["too late"] / len(during), most=LATE),
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

    def disturb(address: str, process: subprocess.Popen[str]) -> None:
        time.sleep(moments[count // 4])
        os.kill(_replicas(process.pid)[0], signal.SIGKILL)
        time.sleep(moments[count // 4])
        httpx.post(address + "/reload", timeout=120).raise_for_status()

    with (
        served(store, "--replicas", "2", "--within", "10s") as (address, process),
        concurrent.futures.ThreadPoolExecutor() as beside,
    ):
        disturbing = beside.submit(disturb, address, process)
        found = ask_all(address, moments, rows)
        disturbing.result()
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
        Bar("losses, wrong answers", wrong, most=0),
        Bar("losses, lost", row["lost"], most=0),
    ]


def forecasts(store: Path, rows: numpy.ndarray, *, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """Expected and measured, at 70% of what a configuration can do."""
    from dovetail.verbs.latency_promise import OVERHEAD_SECONDS
    from dovetail.verbs.serve_model import ServedChoice

    found_rows, bars = [], []
    for width in (256,) if quick else (1024, 2048):
        home = store.parent / f"wide-{width}"
        dt.run(dt.grid(perceptron, width=width, steps=1), store=home, progress=False)
        choice = ServedChoice(store=home, metric="accuracy")
        cores = len(os.sched_getaffinity(0))
        curve, front = measure_server(choice.choose()[0], choice.schema(), cores=cores)
        for batch in (4,) if quick else (1, 4, 16):
            group = ReplicaGroup("replica", 1, batch, curve)
            most = batch / (curve.seconds(batch) + front.call_seconds)
            rate = 0.7 * min(most, 1 / (front.request_seconds + front.call_seconds / batch), 500.0)
            moments = poisson(rate, 2.0 if quick else 20.0, seed=batch)
            words = ("--batch-rows", str(batch), "--wait", "2ms", "--within", "10s")
            with served(home, *words) as (address, _process):
                ask_all(address, poisson(50, 1.0, seed=0), rows)
                began = time.process_time()
                measured = p99(ask_all(address, moments, rows))
                asking = (time.process_time() - began) / len(moments)  # whoever asks is on these cores, too
            expected = forecast(
                [group],
                moments.tolist(),
                wait_seconds=0.002,
                overhead=OVERHEAD_SECONDS + asking,
                front=dataclasses.replace(front, cores=front.cores - rate * asking),
            )
            found_rows.append(
                {
                    "row": "forecast",
                    "width": width,
                    "rows a call": batch,
                    "asked, 1/s": rate,
                    "expected p99": expected.p99,
                    "measured p99": measured,
                    "CPU s a request": front.request_seconds,
                    "CPU s a call": front.call_seconds,
                    "off": abs(expected.p99 / measured - 1),
                }
            )
            print(found_rows[-1], file=sys.stderr)
            bars.append(
                Bar(f"forecast, width {width}, {batch} rows a call, p99 off by", found_rows[-1]["off"], most=OFF)
            )
    return found_rows, bars


PROMISE = 0.15
MIXED = [
    KindOffer("large", 3.0, 3, {"plain": LatencyCurve(((1, 0.004), (64, 0.020)))}),
    KindOffer("small", 0.7, 6, {"plain": LatencyCurve(((1, 0.010), (64, 0.110)))}),
    KindOffer("cpu", 0.1, 12, {"plain": LatencyCurve(((1, 0.045), (16, 0.360)))}),
]


def drawn_kinds(seed: int) -> list[KindOffer]:
    """Four kinds, two to four of each, up to 16 times as fast as one another; dearer the faster, more or less."""
    draw, found = numpy.random.default_rng(seed), []
    for number in range(4):
        speed = float(2 ** draw.uniform(0, 4))
        price = round(float(speed**0.9 * numpy.exp(draw.normal(0, 0.25))), 2)
        one, row = 0.03 / speed**0.5, 0.01 / speed
        curve = LatencyCurve(((1, one), (32, one + 32 * row)))
        found.append(KindOffer(f"kind {number}", price, int(draw.integers(2, 5)), {"plain": curve}))
    return found


def full_rate(offer: KindOffer) -> float:
    """Rows a second of one of them, in the largest calls that take no longer than the promise."""
    curve = offer.curves["plain"]
    return max(rows / curve.seconds(rows) for rows in range(1, 513) if curve.seconds(rows) <= PROMISE)


def least_price(offers: list[KindOffer], rate: float) -> float:
    """No plan is below this: the cheapest of all devices that could do it if none ever waited."""
    rates = numpy.array([full_rate(offer) for offer in offers])
    counts = numpy.indices([offer.most + 1 for offer in offers]).reshape(len(offers), -1)
    prices = numpy.array([offer.price for offer in offers]) @ counts
    return float(prices[rates @ counts >= rate].min())


def mix(store: Path, rows: numpy.ndarray, *, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """What it costs where kinds may be mixed, and where they may not."""
    rates = (600,) if quick else tuple(150 * 1.4**step for step in range(12))
    fixed = [(MIXED, rate) for rate in rates]
    drawn = []
    for seed in range(3 if quick else 100):
        offers = drawn_kinds(seed)
        most = max(offer.most * full_rate(offer) for offer in offers)
        drawn.append((offers, most * float(numpy.random.default_rng(seed).uniform(0.15, 0.7))))
    found = [_mixed("one cluster, twelve rates", fixed, quick), _mixed("drawn clusters", drawn, quick)]
    return found, [Bar("mix, saved on drawn clusters", found[1]["saved, mean"], least=SAVED)]


def least_of_one_kind(offers: list[KindOffer], arrivals: list[float]) -> float:
    """What the cheapest kind costs that keeps the promise by itself."""
    found = []
    for offer in offers:
        with contextlib.suppress(dt.DovetailError):
            found.append(plan_serving([offer], arrivals, p99=PROMISE).price)
    return min(found)


def _mixed(name: str, cases: list[tuple[list[KindOffer], float]], quick: bool) -> dict[str, Any]:
    saved, mixed, alike, least = [], 0.0, 0.0, 0.0
    for offers, rate in cases:
        arrivals = arrivals_at(rate, 1000 if quick else 6000)
        ours = plan_serving(offers, arrivals, p99=PROMISE).price
        theirs = least_of_one_kind(offers, arrivals)
        saved.append(1 - ours / theirs)
        mixed, alike, least = mixed + ours, alike + theirs, least + least_price(offers, rate)
    return {
        "row": "mix",
        "on": name,
        "mixed, all": mixed,
        "one kind, all": alike,
        "no plan below": least,
        "saved over all": 1 - mixed / alike,
        "a fifth or more saved on": sum(each >= SAVED for each in saved) / len(saved),
        "saved, mean": statistics.mean(saved),
        "saved at most": max(saved),
    }


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
    code = 0
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        dt.run(dt.grid(perceptron, steps=1), store=store, progress=False)
        for name in chosen.rows:
            rows, bars = makers[name](store, asked_rows, quick=chosen.quick)
            code |= finish("server", rows, bars, check=chosen.check, quick=chosen.quick, part_by="row")
    sys.exit(code)


if __name__ == "__main__":
    main()
