"""Models far larger than the device's memory: ours beside FSDP2 with CPU offload and beside resident training.

`python bench/spill.py ROW [--quick] [--check]`, one row a command, on one H200: a row sets up some 110 GB.
Each part of a row runs in a process of its own, so that host and device memory are really given back between them,
limited to the row's device budget by torch's allocator. The same model code, batches and first weights everywhere.
A part's time is one stretch between two synchronized ends of steps; nothing is drained in between, so host updates
that reach into the next step are under way at both ends, as many at one as at the other. Parts that fit into the host
side by side take turns, since others use the machine too: the median of their stretches counts.
`--quick` runs the same parts at a toy size, on a CPU too, and writes nothing.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # so that it runs from a checkout, too

import argparse
import contextlib
import dataclasses
import itertools
import json
import math
import resource
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import psutil
import torch
from reporting import RESULTS, Bar, finish

from dovetail.describe.programs import load_file
from dovetail.planning.techniques.resident import CUDA_HOST_BYTES
from dovetail.train import SessionMember, load_technique
from dovetail.train.numeric import open_session
from dovetail.vocabulary import TechniqueRefused

RECIPE = ROOT / "recipes" / "gpt.py"
GIB = 1 << 30
BYTES_EACH = 16  # a parameter's weight and two moments in fp32, its weight and gradient in bf16
CODED_EACH = 10.04  # the same with moments in 8 bits
CODED = {"approximate": "state-8bit"}
COMMAND_SECONDS, PART_SECONDS = 585.0, 280.0  # a command there has 600; one part that hangs leaves room for another
RESOURCES = ("compute", "up", "down", "update")

Found = dict[str, Any]

WAYS = {"four at once": 4, "two by two": 2}
"""How four models may be interleaved, with how many then are together."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """One training to measure, in a process of its own."""

    name: str
    technique: str = "spill"  # or interleave, resident; "fsdp2" is the peer
    size: str = "6.9b"
    depth: int | None = None  # None: the size's own
    deepest: bool = False  # or, where no depth is given, the greatest that is not refused
    context: int = 1024
    batch: int = 8
    chunk_tokens: int = 1024
    seeds: Sequence[int] = (0,)  # one model each
    clip: float | None = None
    precision: str = "bf16-pure"
    knobs: dict[str, Any] = dataclasses.field(default_factory=dict)
    prefetch: int = 0  # blocks ahead, for the peer; 0 is its own way
    settle: int = 4  # ours knows what it has after three steps
    steps: int = 6
    warm: int = 1  # steps before each stretch, until as many updates reach into the next step as ever will
    beside: str = ""  # parts of one such name are set up at once and take turns
    turns: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """What is measured and what must come out."""

    parts: Sequence[Part]
    bars: Callable[[dict[str, Found]], list[Bar]]


# The rows


def budget(device: float, host: float = 110, **more: Any) -> dict[str, Any]:
    """Knobs of a device and a host budget in GiB."""
    return {"device_bytes": int(device * GIB), "host_bytes": int(host * GIB), "recompute": True, **more}


def beside_fsdp(least: float, **common: Any) -> Row:
    """Ours and FSDP2, both within 24 GiB."""
    parts = [
        Part(name="ours, 24 GiB", knobs=budget(24), **common),
        Part(name="FSDP2, 24 GiB", technique="fsdp2", knobs=budget(24), **common),
    ]

    def bars(found: dict[str, Found]) -> list[Bar]:
        ratio = speed(found, "ours, 24 GiB") / speed(found, "FSDP2, 24 GiB")
        return [Bar("tokens a second, ours over FSDP2", ratio, least=least), *kept(found, "ours, 24 GiB")]

    return Row(parts=parts, bars=bars)


def small_budget() -> Row:
    """Ours in 8 GiB beside ours in 24, and beside ours with moments in 8 bits."""
    parts = [Part(name=f"ours, {gib} GiB", knobs=budget(gib)) for gib in (8, 24)]
    parts.append(Part(name="8-bit, 8 GiB", knobs=budget(8) | CODED))

    def bars(found: dict[str, Found]) -> list[Bar]:
        ratio = speed(found, "ours, 8 GiB") / speed(found, "ours, 24 GiB")
        coded = speed(found, "8-bit, 8 GiB") / speed(found, "ours, 8 GiB")
        return [
            Bar("tokens a second, 8 GiB over 24", ratio, least=0.7),
            Bar("tokens a second in 8 GiB, moments in 8 bits over exact", coded, least=1.25),
            *kept(found, *(part.name for part in parts)),
        ]

    return Row(parts=parts, bars=bars)


def together() -> Row:
    """Four models interleaved, all at once and two by two, each beside one of them alone with the whole budget, of
    which four one after another take four times as long. Clipped and not."""
    parts = []
    for (word, clip), (way, models) in itertools.product({"clipped": 1.0, "free": None}.items(), WAYS.items()):
        common: dict[str, Any] = {"size": "1.4b", "knobs": budget(8), "clip": clip, "warm": 3, "turns": 5}
        common["beside"] = f"{word}, {way}"
        parts += [
            Part(name=f"{word}, {way}", technique="interleave", seeds=range(models), settle=6, **common),
            Part(name=f"{word}, alone beside {way}", **common),
        ]

    def bars(found: dict[str, Found]) -> list[Bar]:
        clipped, free = (gains(found, word) for word in ("clipped", "free"))
        shares = [over(found[name].get("roofline_seconds"), found[name].get("seconds")) for name in clipped]
        either = [*(gain / 1.25 for gain in clipped.values()), *(share / 0.85 for share in shares)]
        best = max(free, key=lambda name: free[name], default="free")
        return [
            Bar(
                "clipped: gain over 1.25, or share of the roofline over 0.85, the larger",
                max(filter(math.isfinite, either), default=math.nan),
                least=1.0,
            ),
            Bar(f"{best}: tokens a second over one after another", free.get(best, math.nan), least=1.0),
            *kept(found, *(part.name for part in parts)),
        ]

    return Row(parts=parts, bars=bars)


def beside_exact(least: float, *, exact: float, fsdp2: float, resident: float, **common: Any) -> Row:
    """Ours exact, ours with moments in 8 bits, FSDP2 and resident training, in one run."""
    peers = beside_fsdp(least, **common)
    coded = Part(name="8-bit, 24 GiB", knobs=budget(24) | CODED, **common)
    whole = Part(name="resident", technique="resident", precision="bf16", **common)

    def bars(found: dict[str, Found]) -> list[Bar]:
        over = {"ours, 24 GiB": exact, "FSDP2, 24 GiB": fsdp2, "resident": resident}
        mine = speed(found, coded.name)
        return [
            *peers.bars(found),
            *(
                Bar(f"tokens a second, 8-bit over {n}", mine / speed(found, n), least=ratio)
                for n, ratio in over.items()
            ),
            *kept(found, coded.name),
        ]

    return Row(parts=[peers.parts[0], coded, whole, peers.parts[1]], bars=bars)


def greatest(*, host: float = 120, **disk: Any) -> Row:
    """The deepest model of width 4,096 that is not refused."""
    # With a disk a step takes many seconds, and one more to settle: what is kept at first is known to be too much.
    few = {"steps": 3, "settle": 5} if "disk_bytes" in disk else {"steps": 5}
    part = Part(name="ours", deepest=True, knobs=budget(24, host, **disk), **few)

    def bars(found: dict[str, Found]) -> list[Bar]:
        one = found.get("ours", {})
        host = over(one.get("host_bytes"), one.get("host_budget_bytes"))
        billions = [Bar("billions of parameters", one.get("parameters", math.nan) / 1e9, least=12.5)] * (disk == CODED)
        losses = one.get("losses", [math.nan])
        falls = Bar("ours: the last loss over the first", losses[-1] / losses[0], most=0.95)
        return [Bar("ours: host bytes over budget", host, most=1.0), *billions, falls, *kept(found, "ours")]

    return Row(parts=[part], bars=bars)


def rows() -> dict[str, Row]:
    """Every row by its name."""
    return {
        "24g-b8": beside_exact(2.8, exact=1.3, fsdp2=3.6, resident=0.85),
        # The device computes for longer than the host updates, either way.
        "24g-b32": beside_exact(1.5, exact=1.0, fsdp2=1.5, resident=0.93, batch=32, steps=4),
        "8g-b8": small_budget(),
        "interleave": together(),
        "largest": greatest(),
        "largest-8bit": greatest(**CODED),
        # Each step reads and writes all of it: 16 GiB is what a disk of 1 GB/s moves in half a minute. What is on its
        # way to or from it is in memory too, hence the smaller budget there.
        "disk": greatest(host=112, disk_bytes=16 * GIB, disk_directory=tempfile.gettempdir()),
    }


def speed(found: dict[str, Found], name: str) -> float:
    """Tokens a second of a part, NaN where it has failed."""
    return float(found.get(name, {}).get("tokens_per_second", math.nan))


def gains(found: dict[str, Found], word: str) -> dict[str, float]:
    """The tokens a second of each way to interleave over those of one alone beside it."""
    names = [f"{word}, {way}" for way in WAYS]
    alone = {name: speed(found, name.replace(", ", ", alone beside ")) for name in names}
    return {name: ratio for name in names if not math.isnan(ratio := speed(found, name) / alone[name])}


def kept(found: dict[str, Found], *names: str) -> list[Bar]:
    """What holds for every part of ours: its predictions, and its budget."""
    bars = []
    for name in names:
        one = found.get(name, {})
        forecast, peak = one.get("forecast", {}), one.get("peak_allocated_bytes")
        seconds = off(forecast.get("step_seconds"), one.get("seconds"))
        bars += [
            Bar(f"{name}: predicted seconds off by", seconds, most=0.15),
            Bar(f"{name}: predicted device bytes off by", off(forecast.get("device_bytes"), peak), most=0.10),
            Bar(f"{name}: peak over budget", over(one.get("peak_reserved_bytes"), one.get("budget_bytes")), most=1.0),
        ]
    return bars


def over(one: float | None, other: float | None) -> float:
    """A ratio, NaN where either is missing."""
    return one / other if one and other else math.nan


def off(predicted: float | None, measured: float | None) -> float:
    """How far a prediction is from what was measured, as a share of that."""
    return abs(over(predicted, measured) - 1)


# A row: its parts one after another


def main() -> None:
    chosen = read_arguments()
    os.environ.setdefault("COLUMNS", "200")  # a pipe has no width of its own, and 80 columns do not hold the table
    if chosen.part:
        run_part(Part(**json.loads(chosen.part)), Path(chosen.json_out), socket.socket(fileno=chosen.channel))
    if not chosen.quick and not torch.cuda.is_available():
        raise SystemExit("a row must run on a machine with a CUDA device; this one has none. Use --quick.")
    row = rows()[chosen.row]
    parts = [adjust(part, chosen) for part in row.parts if chosen.only in part.name]
    found = measure_all(parts, chosen)
    failed = [part.name for part in parts if "failed" in found[part.name]]
    name = f"spill-{chosen.row}"
    code = finish(
        name, [table_row(found[part.name]) for part in parts], row.bars(found), check=chosen.check, quick=chosen.quick
    )
    if not chosen.quick:
        keep(name, found)
    sys.exit(2 if failed else code)


def read_arguments() -> argparse.Namespace:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("row", nargs="?", choices=sorted(rows()), metavar="ROW", help=", ".join(rows()))
    arguments.add_argument("--check", action="store_true", help="end with 1 where a bar is missed")
    arguments.add_argument("--quick", action="store_true", help="a toy size, on a CPU too; writes nothing")
    arguments.add_argument("--only", default="", metavar="WORDS", help="only the parts with WORDS in their name")
    arguments.add_argument("--steps", type=int, help="how many are timed")
    arguments.add_argument("--depth", type=int, help="blocks of the model in rows largest and disk")
    arguments.add_argument("--prefetch", type=int, default=0, help="blocks that FSDP2 is told to fetch ahead")
    arguments.add_argument("--knobs", type=json.loads, default={}, metavar="JSON", help="more knobs for ours")
    arguments.add_argument("--part", help=argparse.SUPPRESS)  # a Part as JSON: this process measures it and ends
    arguments.add_argument("--json-out", help=argparse.SUPPRESS)
    arguments.add_argument("--channel", type=int, help=argparse.SUPPRESS)  # whose words are turns
    chosen = arguments.parse_args()
    if not (chosen.row or chosen.part):
        arguments.error(f"ROW must be one of {', '.join(rows())}")
    return chosen


def adjust(part: Part, chosen: argparse.Namespace) -> Part:
    """The part as the arguments want it."""
    if chosen.quick:
        part = tiny(part)
    return dataclasses.replace(
        part,
        steps=chosen.steps or part.steps,
        depth=chosen.depth if part.deepest else part.depth,
        prefetch=chosen.prefetch,
        knobs=part.knobs | (chosen.knobs if part.technique in ("spill", "interleave") else {}),
    )


def tiny(part: Part) -> Part:
    """The part at a size that any machine runs in seconds, in budgets that it still has to spill in."""
    cuda = torch.cuda.is_available()
    # A toy's embedding, the process itself and, on a device, cuBLAS's workspace do not shrink in proportion, and each
    # model of a gang has its share of the whole.
    least = {"device_bytes": (128 if cuda else 32) << 20, "host_bytes": CUDA_HOST_BYTES, "disk_bytes": 0}
    shrunk = {
        name: len(part.seeds) * (least[name] + value // 320) for name, value in part.knobs.items() if name in least
    }
    return dataclasses.replace(
        part,
        size="10m",
        context=64,
        batch=2,
        chunk_tokens=32,
        steps=2,
        turns=min(2, part.turns),
        precision=part.precision if cuda else "fp32",  # a CPU without bf16 units takes minutes for bf16
        knobs=part.knobs | shrunk,
    )


def measure_all(parts: Sequence[Part], chosen: argparse.Namespace) -> dict[str, Found]:
    """What each part gave; a part that fails leaves the others alone."""
    found: dict[str, Found] = {}
    ends = time.monotonic() + COMMAND_SECONDS
    groups = [list(group) for _, group in itertools.groupby(parts, key=lambda part: part.beside or part.name)]
    for group in groups:
        left = ends - time.monotonic()
        # A toy has all the time: a busy machine takes minutes to import and measure.
        limit = left if chosen.quick or group is groups[-1] else min(left, PART_SECONDS)
        (alone,) = group if len(group) == 1 else (None,)
        each = [descend(alone, limit_seconds=limit)] if alone and alone.deepest else in_turn(group, limit_seconds=limit)
        for part, gave in zip(group, each, strict=True):
            found[part.name] = {"name": part.name, **gave}
            print(summary(found[part.name]), flush=True)
        if out := os.environ.get("OUT"):  # what is there comes back even if the command is stopped
            Path(out, f"spill-{chosen.row}-parts.json").write_text(json.dumps(found, indent=2) + "\n")
    return found


def summary(one: Found) -> str:
    """One line, for those who watch."""
    if "failed" in one:
        return f"{one['name']}: failed: {one['failed']}"
    words = f"{one['seconds']:.3f} s a step, {one['tokens_per_second']:,.0f} tokens/s, set up in"
    return f"{one['name']}: {words} {one['set_up_seconds']:.0f} s, busy {one['busy']}, predicted {one['forecast']}"


def in_turn(parts: Sequence[Part], *, limit_seconds: float) -> list[Found]:
    """Measure parts that are set up at once: turn by turn, each in a fresh process."""
    if limit_seconds < 1:
        return [{"failed": "the parts before it left no time"} for _ in parts]
    ends = time.monotonic() + limit_seconds
    with contextlib.ExitStack() as stack:
        started: list[Started] = []
        for part in parts:
            started.append(stack.enter_context(contextlib.closing(Started(part))))
            started[-1].hear(ends)  # one after another: what setting up takes for a while may not fit twice
        for _ in range(max(part.turns for part in parts)):
            for one in started:
                one.take_turn(ends)
        return [one.finish(ends) for one in started]


class Started:
    """A part under way in a process of its own: each word to it is a turn, and it answers when that is over."""

    def __init__(self, part: Part) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._out = Path(self._folder.name, "found.json")
        self._channel, theirs = socket.socketpair()
        words = ["--part", json.dumps(dataclasses.asdict(part), default=list), "--json-out", str(self._out)]
        words += ["--channel", str(theirs.fileno())]
        command = [sys.executable, str(Path(__file__).resolve()), *words]
        with theirs:
            self._process = subprocess.Popen(command, env=surroundings(), pass_fds=[theirs.fileno()])
        self._late = False

    def hear(self, ends: float) -> bool:
        """Wait until it is ready or has had its turn; False where it has ended, or time has."""
        self._channel.settimeout(max(0.1, ends - time.monotonic()))
        try:
            return bool(self._channel.recv(1))
        except TimeoutError:
            self._late = True
            return False
        except OSError:
            return False

    def take_turn(self, ends: float) -> None:
        """One stretch of its steps."""
        with contextlib.suppress(OSError):
            self._channel.sendall(b"t")
            self.hear(ends)

    def finish(self, ends: float) -> Found:
        """What it gave."""
        self._channel.close()
        try:
            # Another part's delay is not this one's: writing takes a moment.
            code = self._process.wait(timeout=0.1 if self._late else max(10.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            return {"failed": "not done in time"}
        if not self._out.exists():
            because = ": killed, most often for want of host memory" if code == -9 else ""
            return {"failed": f"ended with {code}{because}"}
        return dict(json.loads(self._out.read_text()))

    def close(self) -> None:
        """End it, if it has not ended."""
        self._channel.close()
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


def descend(part: Part, *, limit_seconds: float) -> Found:
    """Measure the deepest model that is not refused, at the start or after the first step has shown what work takes.

    A refusal says how many bytes are wanting, so that two or three tries are enough.
    """
    ends, asked, note = time.monotonic() + limit_seconds, part.depth, ""
    part = dataclasses.replace(part, depth=asked or bound(part))
    while True:
        (found,) = in_turn([part], limit_seconds=ends - time.monotonic())
        found["note"] = f"{part.depth} blocks{note}"
        fewer = math.ceil(found.get("wanting_bytes", 0) / (bytes_each(part) * sizes(part)[1]))
        if "wanting_bytes" not in found or asked or part.depth <= fewer:
            return found
        note = f"; {part.depth} were refused: {found['failed'].partition(';')[0]}"
        part = dataclasses.replace(part, depth=part.depth - max(1, fewer))


def bound(part: Part) -> int:
    """More blocks than can fit: as if all tiers were full of parameters, and gradients took no place."""
    rest, block = sizes(part)
    room = sum(part.knobs.get(name, 0) for name in ("device_bytes", "host_bytes", "disk_bytes")) - CUDA_HOST_BYTES
    return max(1, math.ceil((room / (bytes_each(part) - 2) - rest) / block))


def bytes_each(part: Part) -> float:
    """What all tiers hold of a parameter."""
    return CODED_EACH if part.knobs.get("approximate") else BYTES_EACH


def sizes(part: Part) -> tuple[int, int]:
    """The parameters outside the blocks, and those of one."""
    recipe = load_file(RECIPE)
    shape = dataclasses.replace(recipe.SIZES[part.size], depth=1)
    with torch.device("meta"):
        model = recipe.GPT(shape, context=part.context)
    block = count(model.blocks)
    return count(model) - block, block


def count(model: torch.nn.Module) -> int:
    """Its parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def surroundings() -> dict[str, str]:
    """The environment of a part."""
    # Without expandable segments the allocator loses several GiB of a 24 GiB budget between its blocks. The variable
    # has an older name too.
    allocator = dict.fromkeys(("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), "expandable_segments:True")
    return os.environ | allocator | {"PYTHONUNBUFFERED": "1"}


def table_row(one: Found) -> dict[str, Any]:
    """The columns worth a person's eye; the rest is in the results file."""
    forecast = one.get("forecast", {})
    models = f"{one['models']} × " if one.get("models", 1) > 1 else ""
    failure = f"failed: {one['failed'][:200]}" if "failed" in one else None
    return {
        "part": one["name"],
        "parameters": f"{models}{one['parameters'] / 1e9:.3g}B" if "parameters" in one else None,
        "s/step": one.get("seconds"),
        "predicted": forecast.get("step_seconds"),
        "roofline": one.get("roofline_seconds"),
        "of roofline": one.get("of_roofline"),
        "tokens/s": one.get("tokens_per_second"),
        "TFLOP/s": one.get("model_teraflops"),
        "peak GiB": gib(one.get("peak_allocated_bytes")),
        "reserved": gib(one.get("peak_reserved_bytes")),
        "predicted GiB": gib(forecast.get("device_bytes")),
        "host GiB": gib(one.get("host_bytes")),
        "loss": one["losses"][-1] if "losses" in one else None,
        "note": "; ".join(filter(None, (one.get("note"), failure))) or None,
    }


def gib(count: float | None) -> float | None:
    """Bytes in GiB."""
    return None if count is None else count / GIB


def keep(name: str, found: dict[str, Found]) -> None:
    """Put everything measured beside the table in its results file, and a copy in the folder $OUT, if there is one."""
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "parts": found}, indent=2) + "\n")
    if out := os.environ.get("OUT"):
        shutil.copy(path, out)


# A part: everything below runs in its own process


@dataclasses.dataclass(frozen=True, kw_only=True)
class Live:
    """A training under way."""

    advance: Callable[[], list[torch.Tensor]]  # one step of every model; their losses
    parameters: int  # of one model
    session: Any = None


def run_part(part: Part, out: Path, channel: socket.socket) -> None:
    """Measure, write, and end this process."""
    try:
        found = measure(part, channel)
    except Exception as error:  # whatever it is, the other parts are still worth their table
        if not isinstance(error, TechniqueRefused):  # which says all there is to say
            traceback.print_exc()
        found = {"failed": f"{type(error).__name__}: {error}", **refusal(error)}
    out.write_text(json.dumps(found, default=str))
    sys.stdout.flush()
    # The process's end gives 110 GB back at once; closing a session first would copy its weights out.
    os._exit(0)


def refusal(error: BaseException | None) -> Found:
    """How many bytes were wanting, where a technique refused for want of memory, even if that was in a step."""
    while error is not None and not isinstance(error, TechniqueRefused):
        error = error.__cause__
    needed, free = getattr(error, "needed_bytes", 0), getattr(error, "free_bytes", 0)
    return {"wanting_bytes": needed - free} if needed else {}


def measure(part: Part, channel: socket.socket) -> Found:
    """Set up, settle, and time a stretch of steps for each word on the channel."""
    device = prepare(part)
    used, began = host_bytes(), time.perf_counter()
    with contextlib.ExitStack() as stack:
        live = fsdp2(part, device, stack) if part.technique == "fsdp2" else session(part, device)
        losses = [live.advance() for _ in range(part.settle - 1)]
        forecast = forecast_of(live.session)
        if hasattr(live.session, "forget_rates"):
            live.session.forget_rates()  # the roofline is that of the steps that are timed
        set_up, held, stretches = time.perf_counter() - began, host_bytes() - used, []
        channel.sendall(b"r")
        while channel.recv(1):
            losses += [live.advance() for _ in range(part.warm)]  # nothing was under way: now updates are again
            synchronize(device)
            ready = time.perf_counter()
            losses += [live.advance() for _ in range(part.steps)]
            synchronize(device)
            stretches.append((time.perf_counter() - ready) / part.steps)
            # The machine's memory is counted, and what is set up beside this part would be.
            held = held if part.beside else host_bytes() - used
            if hasattr(live.session, "drain"):
                live.session.drain()  # others have their turn; and a background update that failed shows here
            channel.sendall(b"t")
        seconds = statistics.median(stretches)
        busy = busy_of(live.session)
        return {
            **rates(part, live, seconds=seconds, busy=busy),
            **memory(part, device, held=held),
            "stretches": stretches,
            "set_up_seconds": set_up,
            "forecast": forecast,
            "busy": busy,
            "losses": finite([torch.stack([loss.float().cpu() for loss in each]).mean().item() for each in losses]),
        }


def forecast_of(session: Any) -> Found:
    """What a session of ours expects of itself, as plain data; nothing of the others."""
    found = getattr(session, "forecast", None)
    found = found() if callable(found) else found
    plain = dataclasses.asdict(found) if dataclasses.is_dataclass(found) else dict(found or {})
    pace = plain.pop("pace", None)
    return plain | {"step_seconds": pace["seconds"], "pace": pace} if pace else plain


def busy_of(session: Any) -> dict[str, float]:
    """For how many seconds of a step each resource is busy: as measured, or by the rates seen in the steps so far."""
    measured = getattr(session, "measured", None)
    measured = measured() if callable(measured) else measured
    pace = forecast_of(session).get("pace", {})
    return dict(measured or {name: pace[f"{name}_seconds"] for name in RESOURCES if pace})


def prepare(part: Part) -> torch.device:
    """The device, limited to the part's budget."""
    torch.set_num_threads(threads())
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    if allowed := part.knobs.get("device_bytes"):
        torch.cuda.set_per_process_memory_fraction(allowed / torch.cuda.mem_get_info(device)[1], device)
    return device


def session(part: Part, device: torch.device) -> Live:
    """A session of one of our techniques."""
    members = [SessionMember(training=build(part, seed=seed), seed=seed) for seed in part.seeds]
    parameters = count(members[0].training.model)
    technique = load_technique(part.technique)
    opened = open_session(technique, members, device=device, threads=threads(), knobs=part.knobs)
    models = range(len(members))
    return Live(
        advance=lambda: [report.loss for report in opened.advance(models)], parameters=parameters, session=opened
    )


def fsdp2(part: Part, device: torch.device, stack: contextlib.ExitStack) -> Live:
    """The peer."""
    import fsdp  # here, since torch.distributed is of no use to the others

    stack.enter_context(fsdp.one_rank())
    training = build(part, seed=part.seeds[0])
    model, feed, loss = training.model, training.batches, training.loss
    parameters = count(model)
    del training  # with its optimizer, which would keep the whole weights alive
    fsdp.shard(model, model.blocks, device=device, prefetch=part.prefetch)
    optimizer = load_file(RECIPE).adamw(model.parameters(), fused=True)
    peer = fsdp.Peer(model, batches=feed, loss=loss, optimizer=optimizer, clip_norm=part.clip, device=device)
    return Live(advance=peer.advance, parameters=parameters)


def build(part: Part, *, seed: int) -> Any:
    """The training of one model, on the host. A seed gives the same weights and batches in every part."""
    torch.manual_seed(seed)
    return load_file(RECIPE).gpt(
        size=part.size,
        depth=part.depth,
        context=part.context,
        batch=part.batch,
        # Ours recomputes by its own knob.
        checkpointing=part.technique in ("resident", "fsdp2"),
        precision=part.precision,
        seed=seed,
        clip=part.clip,
        chunks=max(1, part.batch * part.context // part.chunk_tokens),
        fused=True,
        fast=True,
    )


def rates(part: Part, live: Live, *, seconds: float, busy: dict[str, float]) -> Found:
    """Speeds, and the least that a step could take: its busiest resource's seconds."""
    tokens = len(part.seeds) * part.batch * part.context
    roofline = max((busy[name] for name in RESOURCES if busy.get(name)), default=None)
    return {
        "models": len(part.seeds),
        "parameters": live.parameters,
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "model_teraflops": 6 * live.parameters * tokens / seconds / 1e12,  # recomputation is no work of the model's
        "roofline_seconds": roofline,
        "of_roofline": roofline / seconds if roofline else None,
    }


def memory(part: Part, device: torch.device, *, held: int) -> Found:
    """What the part held at most on the device, set-up included, and what it holds on the host."""
    cuda = device.type == "cuda"
    return {
        "budget_bytes": part.knobs.get("device_bytes"),
        "host_budget_bytes": part.knobs.get("host_bytes"),
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(device) if cuda else None,
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(device) if cuda else None,
        # Pinned pages may be missing from a process's own count; the machine's holds them.
        "host_bytes": held,
        "resident_set_bytes": psutil.Process().memory_info().rss,
        "peak_resident_set_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def host_bytes() -> int:
    """Host memory in use on this machine, whoever uses it."""
    now = psutil.virtual_memory()
    return int(now.total - now.available)


def finite(losses: list[float]) -> list[float]:
    """The losses, all of them numbers."""
    if not all(map(math.isfinite, losses)):
        raise ArithmeticError(f"the loss must stay finite, got {losses}")
    return losses


def synchronize(device: torch.device) -> None:
    """Wait for what the device was given. Host updates go on."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def threads() -> int:
    """As many as were asked for in the usual way, else all cores of this process."""
    return int(os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0))))


if __name__ == "__main__":
    main()
