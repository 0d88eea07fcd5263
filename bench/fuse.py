"""Many small trainings as one program: ours beside the same trainings one after another, eager and compiled.

`python bench/fuse.py ROW [--quick] [--check]`, one row a command, on one H200; each takes less than 100 seconds.
The same programs, first weights and batches everywhere, batches on the device before time is taken. A part's seconds
are those of one step of *all* tasks: the median of stretches between two synchronisations, in turn with the other
parts of its process. What compiles runs in a process of its own with the time that is left; a part that fails is
printed with its error and leaves the others alone. Last, the row is a sweep that `dovetail run` trains as it sees fit:
its seconds are those of a step as the run's store has them, and must be near the best of ours above. `--quick` runs at
a toy size, on a CPU too, and writes nothing.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # so that it runs from a checkout, too

import argparse
import concurrent.futures
import contextlib
import copy
import dataclasses
import fcntl
import functools
import gc
import json
import math
import shutil
import statistics
import subprocess
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from commands import run_words, stopped_after
from gang_rates import gang_rates
from reporting import RESULTS, Bar, finish
from torch import nn
from torch.nn import functional as F

from dovetail.describe.programs import load_file
from dovetail.train import FUSE, SessionMember, Training

ROW_SECONDS = 97.0
STRETCHES = 3
EPOCH = 64  # at an epoch's first batches a feed looks at what they hold, which waits for the device
LOSSES = 8  # so many steps' losses are compared
KINDS = {"bf16": torch.bfloat16, "fp32": torch.float32}
SLOW = {"precision": "fp32"}  # a CPU without bf16 units takes minutes for bf16
OURS = {"ours, plain": "off", "ours, graph": "graph", "ours, compiled": "full"}
RUN = "dovetail run"
RUN_SECONDS = 90.0  # then it is interrupted: there are many steps, so that it pays to begin slowly and go on fast
RUN_OF_BEST = 0.9  # what a user must get of what the technique gives when it is opened by hand
EAGER, GRAPH, COMPILED = "one after another", "one after another, graphs", "one after another, compiled"

Found = dict[str, Any]


# The rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """So many trainings of one program, how much faster they must be together, and how equal."""

    build: Callable[..., Training]
    quick: dict[str, Any]
    members: int
    faster: float
    tolerance: float
    steps: int = 10
    run_steps: int = 30_000  # by `dovetail run`: some minutes
    frozen: bool = False  # whether all share a frozen base, whose memory is held once


def mlp(*, seed: int, device: torch.device, width: int = 512, batch: int = 128) -> Training:
    """784-512-512-10 in fp32; labels are those of a fixed linear map."""
    with torch.device(device):
        model = nn.Sequential(
            nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
        )
        teacher = torch.randn(784, 10, generator=torch.Generator(device).manual_seed(0))  # the same for all
        inputs = [torch.randn(batch, 784) for _ in range(4)]
    return Training(
        model=model,
        batches=[(x, (x @ teacher).argmax(1)) for x in inputs] * EPOCH,
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3 / (1 + seed % 4)),
    )


def gpt(
    *,
    seed: int,
    device: torch.device,
    depth: int = 6,
    width: int = 256,
    batch: int = 16,
    context: int = 256,
    precision: str = "bf16",
) -> Training:
    """6 layers of 256 over bytes, in bf16 under autocast."""
    recipe = load_file(ROOT / "recipes" / "gpt.py")
    size = recipe.Size(depth=depth, width=width, heads=4, tied=True, vocabulary=256)
    with torch.device(device):
        model = recipe.GPT(size, context=context)
        batches = [torch.randint(256, (batch, context + 1)).cumsum(1) % 256 for _ in range(4)]
    return Training(
        model=model,
        batches=batches * EPOCH,
        loss=recipe._loss,
        optimizer=torch.optim.AdamW(model.parameters(), lr=3e-4 / (1 + seed % 4), weight_decay=0.1),
        precision=precision,
    )


def lora(
    *,
    seed: int,
    device: torch.device,
    width: int = 2048,
    depth: int = 24,
    batch: int = 1,
    context: int = 256,
    vocabulary: int = 32000,
    precision: str = "bf16",
) -> Training:
    """Adapters by peft on a Llama of 1.4 billion parameters in bf16, which is the same for every seed."""
    import peft
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=width * 11 // 4,
        num_hidden_layers=depth,
        num_attention_heads=16,
        num_key_value_heads=16,
        max_position_embeddings=2048,
        use_cache=False,
    )

    def base() -> nn.Module:
        return transformers.LlamaForCausalLM(config)

    with torch.device(device):
        model = copy_of_base((width, depth), base, KINDS[precision])
        torch.manual_seed(seed)
        adapters = peft.LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules=["q_proj", "v_proj"])
        model = peft.get_peft_model(model, adapters)
        batches = [torch.randint(vocabulary, (batch, context)) for _ in range(4)]
    model.to(device)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return Training(
        model=model,
        batches=batches * EPOCH,
        loss=lambda model, ids: model(input_ids=ids, labels=ids, use_cache=False).loss,
        optimizer=torch.optim.AdamW(trained, lr=1e-3 / (1 + seed % 4)),
        precision=precision,
    )


@functools.cache
def bases() -> dict[Any, nn.Module]:
    """Those made so far. Behind a cache, for a worker puts plain variables back before each task."""
    return {}


def copy_of_base(key: Any, make: Callable[[], nn.Module], dtype: torch.dtype) -> nn.Module:
    """A model with weights from seed 0, made once a process: to draw 1.4 billion numbers takes longer than a copy."""
    if key not in bases():
        torch.manual_seed(0)
        bases()[key] = make().to(dtype)
    return copy.deepcopy(bases()[key])


class Adapted(nn.Module):
    """A frozen linear layer and a low-rank one beside it."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / rank)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Both."""
        return self.base(x) + 2.0 * F.linear(F.linear(x, self.down), self.up)


def lora_plain(
    *,
    seed: int,
    device: torch.device,
    width: int = 2048,
    depth: int = 24,
    batch: int = 1,
    context: int = 256,
    vocabulary: int = 32000,
    precision: str = "bf16",
) -> Training:
    """The same with a GPT and adapters of our own, for machines without peft."""
    recipe = load_file(ROOT / "recipes" / "gpt.py")
    size = recipe.Size(depth=depth, width=width, heads=16, tied=False, vocabulary=vocabulary)
    with torch.device(device):
        model = copy_of_base(size, lambda: recipe.GPT(size, context=context), KINDS[precision]).requires_grad_(False)
        torch.manual_seed(seed)
        for block in model.blocks:
            block.attention_in = Adapted(block.attention_in, 16)
        batches = [torch.randint(vocabulary, (batch, context + 1)) for _ in range(4)]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return Training(
        model=model,
        batches=batches * EPOCH,
        loss=recipe._loss,
        optimizer=torch.optim.AdamW(trained, lr=1e-3 / (1 + seed % 4)),
        precision=precision,
    )


ROWS = {
    "mlp": Row(
        build=mlp, quick={"width": 32, "batch": 8}, members=16, faster=12.0, tolerance=1e-3, steps=30, run_steps=500_000
    ),
    "gpt": Row(
        build=gpt,
        quick={"depth": 2, "width": 32, "batch": 2, "context": 16, **SLOW},
        members=16,
        faster=4.0,
        tolerance=2e-2,
    ),
    "lora": Row(
        build=lora,
        quick={"depth": 2, "width": 64, "context": 16, "vocabulary": 128, **SLOW},
        members=8,
        faster=2.5,
        tolerance=2e-2,
        steps=5,
        run_steps=8_000,
        frozen=True,
    ),
    "lora-plain": Row(
        build=lora_plain,
        quick={"depth": 2, "width": 64, "context": 16, "vocabulary": 128, **SLOW},
        members=8,
        faster=2.5,
        tolerance=2e-2,
        steps=5,
        run_steps=8_000,
        frozen=True,
    ),
}


def bars(row: Row, found: dict[str, Found]) -> list[Bar]:
    """What must hold of a row."""
    eager, ours = found.get(EAGER, {}), {name: found[name] for name in OURS if "seconds" in found.get(name, {})}
    best = min((one["seconds"] for one in ours.values()), default=math.nan)
    held = [Bar("times faster than one after another", eager.get("seconds", math.nan) / best, least=row.faster)]
    if RUN in found:
        share = best / found[RUN].get("seconds", math.nan)
        held.append(Bar("dovetail run, of the best of ours", share, least=RUN_OF_BEST))
    for name, one in ours.items():
        apart = difference(one["losses"], eager.get("losses", []))
        held.append(Bar(f"{name}: losses of {LOSSES} steps, relative difference", apart, most=row.tolerance))
    if row.frozen and eager.get("peak_bytes"):
        for name, one in ours.items():
            held.append(Bar(f"{name}: peak over one base, adapters and activations", memory(one, eager), most=1.25))
    return held


def memory(ours: Found, eager: Found) -> float:
    """The peak, over one base, the adapters with gradients and moments, and each task's activations as it has them
    alone."""
    activations = eager["peak_bytes"] - eager["held_bytes"]
    expected = ours["base_bytes"] + ours["members"] * (ours["adapter_bytes"] * 4 + activations)
    return float(ours["peak_bytes"] / expected)


def difference(found: list[list[float]], expected: list[list[float]]) -> float:
    """The largest relative difference between losses of the same step and task."""
    if not found or len(found) != len(expected):
        return math.nan
    pairs = [
        (one, other) for mine, its in zip(found, expected, strict=True) for one, other in zip(mine, its, strict=True)
    ]
    return max(abs(one - other) / abs(other) if math.isfinite(one) else math.inf for one, other in pairs)


# A row: its parts, in processes that can fail


def main() -> None:
    chosen = read_arguments()
    os.environ.setdefault("COLUMNS", "200")
    if chosen.parts:
        measure(chosen)
        return
    cuda = torch.cuda.is_available()
    if not chosen.quick and not cuda:
        raise SystemExit("a row must run on a machine with a CUDA device; this one has none. Use --quick.")
    together = [EAGER, "ours, plain", *(["ours, graph", GRAPH] if cuda else [])]
    apart = [["ours, compiled"], [COMPILED]] if cuda else []
    found = {}
    ends = time.monotonic() + ROW_SECONDS
    found |= spawn(chosen, [part for part in together if chosen.only in part], ends)
    # Compiling is the hosts' work and can be done at once; times are taken in turn.
    with concurrent.futures.ThreadPoolExecutor() as pool:
        both = [pool.submit(spawn, chosen, [part for part in parts if chosen.only in part], ends) for parts in apart]
        for future in both:
            found |= future.result()
    row = ROWS[chosen.row]
    if chosen.only in RUN and not chosen.quick:
        found[RUN] = through_run(chosen.row)
    name = f"fuse-{chosen.row}"
    lines = [table_row(name, one, found.get(EAGER, {})) for name, one in found.items()]
    code = finish(name, lines, bars(row, found), check=chosen.check, quick=chosen.quick)
    if not chosen.quick:
        path = RESULTS / f"{name}.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "parts": found}, indent=2) + "\n")
        if out := os.environ.get("OUT"):
            shutil.copy(path, out)
    sys.exit(
        2 if "failed" in found.get(EAGER, {}) or all("failed" in found.get(n, {"failed": 1}) for n in OURS) else code
    )


def through_run(name: str) -> Found:
    """The row as a sweep: the seconds of a step of all its tasks, once things have settled, and what was chosen."""
    row = ROWS[name]
    variables = {"DOVETAIL_BENCH_ROW": name, "DOVETAIL_BENCH_STEPS": str(row.run_steps)}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "store"
        stopped_after(RUN_SECONDS, run_words(str(ROOT / "bench" / "sweeps" / "fused.py"), home), **variables)
        rates = gang_rates(home)
    if not rates:
        return {"failed": f"nothing was trained in {RUN_SECONDS:.0f} s"}
    rates = rates[-1:] if len(rates[-1].option.families) == row.members else rates
    # Gangs take turns with the device; a step of all tasks is what all gangs take, over the steps that each task did.
    done = sum(rate.steps * len(rate.option.families) for rate in rates) / row.members
    seconds = sum(rate.measured_seconds * rate.steps for rate in rates) / done
    used = ", ".join(f"{r.option.technique} of {len(r.option.families)} {dict(r.option.knobs)}" for r in rates)
    return {"seconds": seconds, "members": row.members, "note": used}


def read_arguments() -> argparse.Namespace:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("row", choices=sorted(ROWS), metavar="ROW", help=", ".join(ROWS))
    arguments.add_argument("--check", action="store_true", help="end with 1 where a bar is missed")
    arguments.add_argument("--quick", action="store_true", help="a toy size, on a CPU too; writes nothing")
    arguments.add_argument("--only", default="", metavar="WORDS", help="only the parts with WORDS in their name")
    arguments.add_argument("--parts", type=json.loads, help=argparse.SUPPRESS)  # this process measures these and ends
    arguments.add_argument("--json-out", help=argparse.SUPPRESS)
    return arguments.parse_args()


def spawn(chosen: argparse.Namespace, parts: list[str], ends: float) -> dict[str, Found]:
    """Measure parts in a fresh process; what it had found when it ended counts."""
    if not parts:
        return {}
    limit_seconds = ends - time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "found.json")
        words = [chosen.row, "--parts", json.dumps(parts), "--json-out", str(out), *(["--quick"] * chosen.quick)]
        end = "the parts before it left no time"
        if limit_seconds > 5:
            try:
                done = subprocess.run([sys.executable, __file__, *words], timeout=limit_seconds, check=False)
                end = f"ended with {done.returncode}"
            except subprocess.TimeoutExpired:
                end = f"not done after {limit_seconds:.0f} s"
        found = json.loads(out.read_text()) if out.exists() else {}
    return {part: found.get(part, {"failed": end}) for part in parts}


def table_row(name: str, one: Found, eager: Found) -> dict[str, Any]:
    """The columns worth a person's eye."""
    ratio = eager["seconds"] / one["seconds"] if "seconds" in one and "seconds" in eager else None
    return {
        "part": name,
        "tasks": one.get("members"),
        "ms for a step of all": one["seconds"] * 1e3 if "seconds" in one else None,
        "times faster": ratio,
        "held GiB": gib(one.get("held_bytes")),
        "peak GiB": gib(one.get("peak_bytes")),
        "first steps s": one.get("begin_seconds"),
        "last loss": one["losses"][-1][0] if one.get("losses") else None,
        "note": f"failed: {one['failed'][:160]}" if "failed" in one else one.get("note"),
    }


def gib(count: float | None) -> float | None:
    """Bytes in GiB."""
    return count / (1 << 30) if count else None


# Parts: everything below runs in a process of its own


@dataclasses.dataclass(kw_only=True)
class Live:
    """Trainings under way."""

    advance: Callable[[], list[torch.Tensor]]  # one step of every task that is run; their losses
    note: Callable[[], str | None] = lambda: None
    times: int = 1  # how often a step counts: 1, or all tasks where only the first is run
    keeps: Any = None


def measure(chosen: argparse.Namespace) -> None:
    """Set up each part, then take their times in turn; write what is known after each."""
    row, device = ROWS[chosen.row], torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found: dict[str, Found] = {}
    live: dict[str, Live] = {}

    def write() -> None:
        Path(chosen.json_out).write_text(json.dumps(found, default=str))

    build(row, 0, device, quick=chosen.quick)  # imports, and a base that parts copy
    for part in chosen.parts:
        with failing(part, found, live):
            found[part], live[part] = begin(row, part, device, quick=chosen.quick)
        write()
    stretches: dict[str, list[float]] = {part: [] for part in live}
    turn = Path(__file__).open()  # noqa: SIM115
    fcntl.flock(turn, fcntl.LOCK_EX)  # until this process ends
    for _ in range(2 if chosen.quick else STRETCHES):
        for part in list(live):
            with failing(part, found, live):
                stretches[part].append(stretch(live[part], 2 if chosen.quick else row.steps, device))
                found[part]["seconds"] = statistics.median(stretches[part])
        write()


@contextlib.contextmanager
def failing(part: str, found: dict[str, Found], live: dict[str, Live]) -> Iterator[None]:
    """A part that fails says why, and is left out from there on."""
    try:
        yield
    except Exception as error:
        traceback.print_exc()
        live.pop(part, None)
        found[part] = {"failed": f"{type(error).__name__}: {error}"}
        gc.collect()


def begin(row: Row, part: str, device: torch.device, *, quick: bool) -> tuple[Found, Live]:
    """Build a part and take its first steps, whose losses are compared."""
    before, began = allocated(device), time.perf_counter()
    trainings = [build(row, seed, device, quick=quick) for seed in range(row.members)]
    facts = sizes(trainings[0].model)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        live = opened(part, trainings, device)
        built = time.perf_counter()
        del trainings
        gc.collect()
        losses = [[float(loss) for loss in live.advance()] for _ in range(2)]
        held, peak = reset_peak(device) - before, 0
        losses += [[float(loss) for loss in live.advance()] for _ in range(LOSSES - 2)]
        peak = peak_bytes(device) - before
    notes = [live.note(), *(str(each.message)[:120] for each in said if "fuse runs without" in str(each.message))]
    ended = time.perf_counter()
    print(
        f"{part}: built in {built - began:.1f} s, first steps in {ended - built:.1f} s, {losses[0][0]:.4f}", flush=True
    )
    cuda = device.type == "cuda"
    return {
        "members": row.members,
        **facts,
        "losses": losses,
        "held_bytes": held if cuda else None,
        "peak_bytes": peak if cuda else None,
        "begin_seconds": ended - built,
        "note": "; ".join(filter(None, notes)) or None,
    }, live


def build(row: Row, seed: int, device: torch.device, *, quick: bool) -> Training:
    """One training. A seed gives the same weights and batches in every part."""
    torch.manual_seed(seed)
    return row.build(seed=seed, device=device, **(row.quick if quick else {}))


def sizes(model: nn.Module) -> Found:
    """Bytes of what is frozen and of what is trained."""
    trained = sum(each.nbytes for each in model.parameters() if each.requires_grad)
    return {"adapter_bytes": trained, "base_bytes": sum(each.nbytes for each in model.parameters()) - trained}


def opened(part: str, trainings: Sequence[Training], device: torch.device) -> Live:
    """The trainings as this part runs them."""
    if part in OURS:
        members = [SessionMember(training=training, seed=seed) for seed, training in enumerate(trainings)]
        session = FUSE.open(members, device=device, threads=torch.get_num_threads(), knobs={"compile": OURS[part]})
        rows = range(len(members))
        return Live(advance=lambda: [report.loss for report in session.advance(rows)], note=lambda: session.failure)
    if part == EAGER:
        steps = [eager(training, device) for training in trainings]
        return Live(advance=lambda: [step() for step in steps])
    if part == GRAPH:
        steps = [captured(training, device, compiled=False) for training in trainings]
        return Live(advance=lambda: [step() for step in steps])
    step = captured(trainings[0], device, compiled=True)
    return Live(advance=lambda: [step()], times=len(trainings), note=lambda: "one task, times their number")


def eager(training: Training, device: torch.device) -> Callable[[], torch.Tensor]:
    """A step as a user writes it."""
    number = 0

    def step() -> torch.Tensor:
        nonlocal number
        batch = training.batches[number % len(training.batches)]
        number += 1
        with computing(training, device):
            loss = training.loss(training.model, batch)
        loss.backward()
        training.optimizer.step()
        training.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def captured(training: Training, device: torch.device, *, compiled: bool) -> Callable[[], torch.Tensor]:
    """A whole step as one CUDA graph, with torch's fused optimizer; through torch.compile first if asked."""
    groups = training.optimizer.param_groups
    numbers = {name: groups[0][name] for name in ("lr", "weight_decay", "betas", "eps")}
    parameters = [parameter for group in groups for parameter in group["params"]]
    optimizer = torch.optim.AdamW(parameters, **numbers, fused=True, capturable=True)
    loss_of = torch.compile(training.loss) if compiled else training.loss
    plain = eager(dataclasses.replace(training, optimizer=optimizer, loss=loss_of), device)
    leaves = [list(batch) if isinstance(batch, tuple) else [batch] for batch in training.batches]
    static = [leaf.clone() for leaf in leaves[0]]
    number, graph, out = 0, torch.cuda.CUDAGraph(), torch.zeros((), device=device)

    def step() -> torch.Tensor:
        nonlocal number, out
        if number < 3:
            number += 1
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                loss = plain()
            torch.cuda.current_stream().wait_stream(stream)
            return loss
        if number == 3:
            batch = tuple(static) if isinstance(training.batches[0], tuple) else static[0]
            once = dataclasses.replace(training, optimizer=optimizer, loss=loss_of, batches=[batch])
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                out = eager(once, device)()
        for own, given in zip(static, leaves[number % len(leaves)], strict=True):
            own.copy_(given)
        number += 1
        graph.replay()
        return out.clone()

    return step


def computing(training: Training, device: torch.device) -> Any:
    """What forward runs under."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=training.precision == "bf16")


def stretch(live: Live, steps: int, device: torch.device) -> float:
    """Seconds of one step of all tasks."""
    live.advance()
    synchronize(device)
    began = time.perf_counter()
    for _ in range(steps):
        live.advance()
    synchronize(device)
    return (time.perf_counter() - began) / steps * live.times


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def allocated(device: torch.device) -> int:
    """Bytes in use."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def reset_peak(device: torch.device) -> int:
    """Look for the peak from here on; gives what is in use."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    return allocated(device)


def peak_bytes(device: torch.device) -> int:
    """The most that was in use."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


if __name__ == "__main__":
    main()
