"""What tolerances (`--keep`) promise and cost, and what copies lose that exchange less than their gradients.

`python bench/guard.py [statistics|sweep|exchange ...] [--check] [--quick]`.

- `statistics`: pairs whose true difference is just above the tolerance, looked at after each: how often that is said to
  be kept; and how many pairs harmless approximations take, by how much their differences vary.
- `sweep`: a small sweep through `dt.run` with 8-bit moments, harmless and with harm that is planted in its evaluation:
  what was decided, and the part of all device time that the pairs took. The planner prefers what is approximate, since
  of so small a model it is not faster.
- `exchange`: two copies on this machine, gradients exact, in bf16 and by few dimensions: step, loss at the end. The
  target of this regression has full rank, so that few dimensions are at their worst; that they learn is the bar there.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from guard_programs import classify, layers, prefer_approximate
from reporting import Bar, finish

import dovetail as dt
from dovetail.planning.paired_differences import CONFIDENCE, MOST_PAIRS, Verdict, judge
from dovetail.store import Store
from dovetail.testing.ranks import Followers
from dovetail.train import REPLICATE
from dovetail.verbs.measure import profile
from dovetail.vocabulary.events import ApproximationJudged, DevicesReleased

Found = tuple[list[dict[str, Any]], list[Bar]]


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    arguments.add_argument("--check", action="store_true")
    arguments.add_argument("--quick", action="store_true")
    chosen = arguments.parse_args()
    if unknown := set(chosen.parts) - set(PARTS):
        arguments.error(f"PART must be one of {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    rows: list[dict[str, Any]] = []
    bars: list[Bar] = []
    for name in chosen.parts or PARTS:
        found, some = PARTS[name](chosen.quick)
        rows += [{"part": name, **row} for row in found]
        bars += [Bar(f"{name}, {bar.name}", bar.value, most=bar.most, least=bar.least) for bar in some]
    return finish("guard", rows, bars, check=chosen.check, quick=chosen.quick, part_by="part")


def measure_statistics(quick: bool) -> Found:
    runs, generator = 200 if quick else 5000, random.Random(0)
    began = time.process_time()
    rows = []
    for name, mean, deviation in (
        ("just above the tolerance", 1.001, 1.0),
        ("harmless, varies by a tenth of it", 0.0, 0.1),
        ("harmless, varies by half of it", 0.0, 0.5),
        ("harmless, varies as much", 0.0, 1.0),
        ("loses three times as much", 3.0, 1.0),
    ):
        verdicts = [_decide(lambda m=mean, d=deviation: generator.gauss(m, d)) for _ in range(runs)]
        kept = statistics.fmean(verdict.keeps is True for verdict in verdicts)
        pairs = statistics.fmean(verdict.bounds.pairs for verdict in verdicts)
        rows.append({"what": name, "said_to_be_kept": round(kept, 4), "pairs": round(pairs, 1)})
    wrong, easy, harm = rows[0]["said_to_be_kept"], rows[1], rows[-1]["said_to_be_kept"]
    seconds = (time.process_time() - began) / (len(rows) * runs)
    return rows, [
        Bar("wrongly said to be kept", wrong, most=1 - CONFIDENCE),
        Bar("harm of three tolerances said to be kept", harm, most=1 - CONFIDENCE),
        Bar("harmless and said to be kept", easy["said_to_be_kept"], least=0.95),
        Bar("pairs for what varies by a tenth", easy["pairs"], most=5),
        Bar("CPU milliseconds a decision", 1e3 * seconds, most=10),
    ]


def _decide(draw: Callable[[], float]) -> Verdict:
    differences: list[float] = []
    while True:
        differences.append(draw())
        verdict = judge(differences, tolerance=1.0, most_pairs=MOST_PAIRS)
        if verdict.keeps is not None:
            return verdict


def measure_sweep(quick: bool) -> Found:
    rows, bars = [], []
    for name, harm in (("harmless", 0.0), ("planted harm of 0.3", 0.3)):
        with tempfile.TemporaryDirectory() as store:
            count, steps = (2, 20) if quick else (16, 400)
            rates = [0.002 * (1 + number) for number in range(count)]
            sweep = dt.grid(classify, learning_rate=rates, harm=harm, steps=steps, name="sweep", techniques="resident")
            profile(sweep, store=store)
            dt.run(sweep, keep={"accuracy": 0.05}, planner=prefer_approximate, store=store, progress=False)
            with Store(Path(store)) as opened:
                events = [event for _, event in opened.events()]
        (judged,) = (event for event in events if isinstance(event, ApproximationJudged))
        orders = [event for event in events if isinstance(event, DevicesReleased)]
        guarding = sum(event.duration_seconds for event in orders if event.purpose == "guard")
        share = guarding / sum(event.duration_seconds * len(event.devices) for event in orders)
        rows.append({"what": name, "pairs": judged.pairs, "share_of_device_time": round(share, 3), "why": judged.why})
        bars.append(
            Bar(f"{name}: kept", float(judged.keeps), least=1.0 if not harm else None, most=0.0 if harm else None)
        )
    return rows, bars


def measure_exchange(quick: bool) -> Found:
    steps, rows, ends = 20 if quick else 200, [], {}
    with Followers(size=2) as followers:
        for way in ("", "gradients-bf16", "gradients-lowrank"):
            session = followers.open(REPLICATE, layers, knobs={"approximate": way} if way else {})
            losses: list[float] = []
            seconds: list[float] = []
            for _ in range(steps):
                began = time.perf_counter()
                losses.append(float(session.advance()[0].loss))
                seconds.append(time.perf_counter() - began)
            ends[way], begins = statistics.fmean(losses[-10:]), losses[0]
            rows.append(
                {
                    "what": way or "exact",
                    "step_milliseconds": round(1e3 * statistics.median(seconds), 2),
                    "loss_at_the_end": round(ends[way], 5),
                }
            )
    bars = [Bar("gradients-bf16: loss at the end over exact", ends["gradients-bf16"] / ends[""], most=1.05)]
    bars += [Bar("gradients-lowrank: loss at the end over the first", ends["gradients-lowrank"] / begins, most=0.9)]
    return rows, bars


PARTS = {"statistics": measure_statistics, "sweep": measure_sweep, "exchange": measure_exchange}

if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
