"""Writes docs/pipeline.md and its pictures from the simulator: `.venv/bin/python docs/make_pipeline.py`."""

import json
from pathlib import Path
from xml.sax.saxutils import escape

from dovetail.planning.pipeline.timetables import TIMETABLES, Durations, Simulated, Timed, simulate
from dovetail.planning.pipeline.timetables.makers import in_strict_turn, warm_ups
from dovetail.planning.pipeline.timetables.picture import text
from dovetail.testing.timetables import bubble_share

FOLDER = Path(__file__).parent
_COLOURS = {"forward": "#a6cee3", "backward": "#b2df8a", "inputs": "#b2df8a", "weights": "#fdbf6f", "update": "#cab2d6"}
_ROW, _BAR, _LEFT, _WIDTH = 26, 20, 64, 960
PAGE = FOLDER / "pipeline.md"
DEPTHS = range(2, 17)
# A column for each: its title, the timetable, its chunks.
COLUMNS = (
    ("GPipe", "gpipe", 1),
    ("1F1B", "1f1b", 1),
    ("interleaved, 2 chunks", "interleaved", 2),
    ("interleaved, 4 chunks", "interleaved", 4),
    ("zero bubble (ZB-H1)", "zero_bubble", 1),
    ("stashing, vertical sync, 2BW", "2bw", 1),
)
PICTURED = {
    "gpipe": ("GPipe", {"microbatches": 8}),
    "1f1b": ("1F1B", {"microbatches": 8}),
    "interleaved": ("Interleaved, two chunks", {"microbatches": 8, "chunks": 2}),
    "zero_bubble": ("Zero bubble", {"microbatches": 8}),
    "stashing": ("PipeDream's 1F1B with weight stashing", {"microbatches": 12}),
    "2bw": ("2BW, three steps of four microbatches", {"microbatches": 4, "steps": 3}),
}

HEAD = """<!-- fmt: off -->
# Pipelines: partitions and timetables

Written by `docs/make_pipeline.py`; the figures and pictures come from the simulator that the planner uses.

## Which layers go where

`dovetail.planning.pipeline.partition.partition(graph, fabric)` cuts a measured graph into stages and hands out
devices so that the slowest stage is as fast as can be. `graph` comes from a `Profile` with layers, `fabric` from a
`Cluster`.

- **Cuts.** Every set of layers that holds what its layers read from may be cut off, so skip connections are no special
  case: an output that is read three stages later crosses three cuts, and is paid for at each. Where branches make
  more such sets than can be tried, a family of good ones is, and the result says so (`complete=False`).
- **Times.** A stage of m replicas passes a microbatch in (C + S)/m seconds: C computes it, S sums gradients around a
  ring of its replicas: 4(m−1)/m·|w|/B, where B is the rate of the slowest level that the ring passes (both ways share a
  port). A cut costs 2a/B times the share of microbatches that pass one port. Transfers overlap with computing and
  summing does not. With a flush or 2BW gradients are summed once in a step.
- **Promises.** At a node's port the traffic of all stages adds up: every microbatch is followed from replica to
  replica, and a division takes no less than its busiest port. The search adds up what one stage passes; what is best by
  that is changed a little, cut by cut and device by device, until nothing makes the promise better.
- **Memory.** Every stage, the last one and plain replication included: weight versions, gradients, optimizer state,
  and the activations of all microbatches in flight, or with recomputation their inputs and one set of activations.
- **Places.** Stages take neighbours along a row of devices, so one may hold part of a node, or one and a half; or equal
  parts of the row each run a copy of the pipeline, as when every node holds one; or, with up to four nodes, devices of
  some of them take turns in the row, so that each of these runs a copy of a part of the pipeline and other nodes the
  rest. Unlike kinds are tried in every order.
- **Ties.** Fewer devices, then fewer stages, then the first in order: the same question has the same answer.

`appraise` says what a division made by hand takes.

## Who computes what when

What literature calls a pipeline schedule is a **timetable** here, because a schedule is placements of tasks. It is
data: a list of actions for each rank, checked before it runs: every microbatch once at every stage, no cycle of ranks
waiting for each other, messages awaited in the order they are sent, backward on the weights that forward used.

Idle share of one step with twice as many microbatches as stages, all stages alike, backward twice as long as forward,
messages in no time. Simulated; each agrees with its closed form: (p−1)/(m+p−1), with v chunks (p−1)/(vm+p−1), with
split backward (p−1)/(3m+p−1); without a flush none, once the pipeline runs.

"""

REPLICAS = """
### Replicated stages

Where stages have unlike numbers of replicas, microbatches go round among them and come in bursts. A strict turn of
one forward and one backward, with the (ranks of this and later stages − 1) // replicas microbatches of warm-up that
PipeDream gives, then leaves ranks idle. Here the order is played through first: a rank takes a backward if one can be
done, else a forward, with one microbatch more in flight; and it goes on with forwards while it waits for the
gradients of other replicas. Idle share of 120 microbatches (filling and draining included), balanced stages:

"""

RUNNING = """
## Running one

A program says what a step is: `accumulate` batches, its microbatches. Planners offer a pipeline over a node's devices
where the profile says that it is clearly faster than what was measured, in the quickest of the synchronous timetables,
depths and widths, none of which changes a bit, and with activations computed again only where memory is short. An
asynchronous mode is other mathematics, so the program asks for it by name:

```python
dt.Training(..., accumulate=4)                      # may become a pipeline
dt.Training(..., accumulate=4, timetable="2bw")     # may become a pipeline without a flush
```

An option's knobs say everything, for tests that choose by hand (`PIPELINE.open(..., knobs=...)`):

| knob | what it says |
|---|---|
| `timetable` | `1f1b` (the default), `gpipe`, `interleaved`, `zero_bubble`; `stashing`, `vertical_sync`, `2bw` |
| `stages` | names of each stage's layers; without it about as many layers each |
| `replicas` | ranks of each stage, such as `(2, 1, 1)`; not with `zero_bubble` or `interleaved` |
| `copies` | so many times every stage's replicas |
| `microbatches` | of a step, a multiple of `accumulate`: batches are divided by rows |
| `chunks` | stages on each rank, of `interleaved` |
| `recompute` | keep inputs only, and compute activations again in backward |
| `spare` | microbatches in flight beyond what is needed, so that ranks do not wait for messages: 1, with replicas and \
in `2bw`; 0 where memory is short |

| mode | w is updated by | equal to |
|---|---|---|
| `1f1b`, `gpipe`, `interleaved`, `zero_bubble` | the step's gradient at w(t) | one device, bit by bit, on CPU |
| `stashing` | each round's gradient at the weights of its forward, less old at later stages | its recurrence |
| `vertical_sync` | the same, with the first stage's age at all stages | its recurrence |
| `2bw` | w(t+1) = w(t) − ν∇f(w(t−1)), m ≥ depth microbatches | its recurrence |

Tied weights belong to several stages with a flush: what later stages found is one more root of the earlier stage's
backward, so that sums have the order of one device. Without a flush they are refused. Clipping is by the norm of all
stages with a flush, and of each stage without one. A loss may draw random numbers before it calls its model; one that
draws afterwards, or from Python's or NumPy's generators, is refused. Stages that do not follow the order of the model's
code are equal up to the order of sums. With `zero_bubble` a weight that a layer holds and something outside of that
layer uses too, in one stage, is refused by name in the first step: its gradients would be summed in another order.

### What delay does to learning

A study of 2026 finds that under a delay of a single step AdamW ends worse while Muon does not; PipeDream reports that
SGD with momentum holds. `bench/convergence.py` measures all of these on two small recipes, at four stages. Each entry
is the loss on held-out data after the same number of updates, mean and spread over three seeds, and after the comma
how many batches of one stage's work it took to the loss that `1f1b` has after two thirds of its updates (`1f1b` runs
empty for 3/7 of its time at four microbatches, the others never):

"""

FAULTS = """
Here Muon bears delay well, and with it and AdamW a delay of one update (`2bw`) costs least; SGD with momentum, at
rates that suit it without delay, does **not** hold. "Corrected" divides AdamW's rate by the weights' age at first, as
PipeMare does; it helps `2bw` and stashing on one recipe, and little else. Use `1f1b` where in doubt: with m
microbatches at p stages it costs (p−1)/(m+p−1) of the time and nothing else.

### When a rank dies or stalls

A dead process is noticed at once, one without heartbeats after 30 s. Heartbeats say what a rank is at, and for how long
it has neither begun anything nor computed: where all ranks within a step are idle for 15 s, the one that does not wait
for another is ended by name, with its last action. A rank that uses its core counts as computing, however long its
step; one that sleeps for longer within a step, waiting for a network say, would be ended wrongly. The first step is
exempt, for a model may be compiled in it. Control goes on from the last checkpoint, with stages for the devices that
remain, or on one.

### What it looked like

Ranks keep the times of their last step, and tell them when they save after twice as many steps as the last time.
`dovetail timetable` draws a pipelined task's step as it was planned and, to the same scale, as it was measured; so does
the report. Without a flush it is the time from one step's last backward at the first stage to the next one's. Here, a
tower of eight equal layers on two busy cores: updates take less than the plan has for them, everything else longer.

```text
tower: 1f1b on n0:0, n0:1
planned: 482.9 ms, 33% idle
rank 0  F0F1....B0-F2B1-F3.B2-F4B3-F5.B4-F6B5-F7.B6-..B7-U--------------..............................................
rank 1  ..F0-B0-F1B1-F2-B2-F3B3-F4-B4-F5B5-F6-B6-F7B7-U--------------.................................................
measured in step 20: 828.0 ms, 20% idle
rank 0  F0----F1--........B0---F2--...B1-----F3-----B2--.F4--....B3----F5----B4--F6-----.B5---.F7---B6-........B7---U-
rank 1  ......F0----B0----F1-----B1---.F2----B2---..F3-----B3----F4---B4----.F5---B5----F6---B6---..F7----B7---U-.....
```

### Limits

- NCCL with several ranks is untried: one CUDA device is all there was. CPUs use gloo.
- Batch statistics are those of microbatches, and a stage that keeps them has one replica.
- A rank has one device; there is no tensor parallelism inside a stage.
- Rank 0 holds the whole model while it evaluates, and while a model is cut every rank does.
"""

REPLICATED = ([1, 2], [2, 1, 1], [3, 2, 1], [2, 3, 1], [13, 2, 1])


def main() -> None:
    """Write the page and its pictures."""
    PAGE.write_text(page())
    for name, picture in pictures().items():
        (FOLDER / "timetables").mkdir(exist_ok=True)
        (FOLDER / "timetables" / f"{name}.svg").write_text(picture)


def page() -> str:
    """The whole page."""
    return HEAD + table() + drawings() + REPLICAS + replicated() + RUNNING + learning() + FAULTS


def pictures() -> dict[str, str]:
    """Every picture by name."""
    return {name: svg(pictured(name)) for name in PICTURED}


def svg(simulated: Simulated, *, seconds: float = 0.0) -> str:
    """What `text` gives, as a picture that stands alone."""
    whole = seconds or simulated.seconds
    scale = (_WIDTH - _LEFT) / whole if whole else 0.0
    height = _ROW * len(simulated.ranks)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        f'font-size="11"><title>{escape(simulated.name)}</title>'
    ]
    for number, rank in enumerate(simulated.ranks):
        top = number * _ROW
        parts.append(f'<text class="rank" x="4" y="{top + 15}">rank {number}</text>')
        parts += [_box(timed, top, scale) for timed in rank if timed.end > timed.start]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _box(timed: Timed, top: int, scale: float) -> str:
    operation = timed.action.operation
    number = "" if operation == "update" else timed.action.microbatch
    left, width = _LEFT + timed.start * scale, (timed.end - timed.start) * scale
    label = f'<text x="{left + width / 2:.1f}" y="{top + 15}" text-anchor="middle">{number}</text>'
    return (
        f'<rect x="{left:.1f}" y="{top + 2}" width="{width:.1f}" height="{_BAR}" fill="{_COLOURS[operation]}" '
        f'stroke="#555" stroke-width="0.5"><title>{escape(str(timed.action))}</title></rect>'
        + (label if width >= 7 * len(str(number)) else "")
    )


def pictured(name: str) -> Simulated:
    """A timetable on four ranks."""
    made = TIMETABLES[name]([1] * 4, **PICTURED[name][1])
    return simulate(made, Durations.equal(made.depth))


def table() -> str:
    """Idle shares by depth."""
    lines = [" | ".join(["| depth", *(title for title, _, _ in COLUMNS)]) + " |"]
    lines.append("|" + "---:|" * (len(COLUMNS) + 1))
    for depth in DEPTHS:
        shares = [f"{share(name, depth, chunks):.1%}" for _, name, chunks in COLUMNS]
        lines.append(" | ".join([f"| {depth}", *shares]) + " |")
    return "\n".join(lines) + "\n"


def share(name: str, depth: int, chunks: int) -> float:
    """Simulated, and the same as the closed form."""
    count = 2 * depth
    if name == "2bw":
        # It never flushes: what two steps more take, once it runs.
        short, long = (TIMETABLES[name]([1] * depth, microbatches=count, steps=steps) for steps in (2, 4))
        further = simulate(long, Durations.equal(depth)).seconds - simulate(short, Durations.equal(depth)).seconds
        found = 1 - 3.0 * 2 * count / further
    else:
        knobs = {"chunks": chunks} if name == "interleaved" else {}
        made = TIMETABLES[name]([1] * depth, microbatches=count, **knobs)
        found = simulate(made, Durations.equal(made.depth)).bubble_share
    assert abs(found - bubble_share(name, depth=depth, microbatches=count, chunks=chunks)) < 1e-9, (name, depth)
    return found


def drawings() -> str:
    """Each timetable as text and as a picture."""
    parts = ["\nFour ranks: F is forward, B backward, I and W its two parts, dots are idle.\n"]
    for name, (title, _) in PICTURED.items():
        drawn = text(pictured(name), columns=96)
        parts.append(f"### {title}\n\n```text\n{drawn}\n```\n\n![{title}](timetables/{name}.svg)\n")
    return "\n".join(parts)


def learning() -> str:
    """What `bench/convergence.py` measured last."""
    rows = json.loads((FOLDER.parent / "bench" / "results" / "convergence.json").read_text())["rows"]
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    lines = [
        f"| recipe | optimizer | {' | '.join(f'`{mode}`' for mode in modes)} |",
        "|---|---|" + "---:|" * len(modes),
    ]
    for recipe, optimizer in dict.fromkeys((row["recipe"], row["optimizer"]) for row in rows):
        found = {row["mode"]: row for row in rows if (row["recipe"], row["optimizer"]) == (recipe, optimizer)}
        entries = [
            f"{found[mode]['held_out_loss']:.2f} ± {found[mode]['spread']:.2f}, {found[mode]['reached'] or 'never'}"
            for mode in modes
        ]
        lines.append(f"| {recipe} | {optimizer} | {' | '.join(entries)} |".replace(".0 |", " |"))
    return "\n".join(lines) + "\n"


def replicated() -> str:
    """Idle shares with unlike replicas."""
    lines = ["| replicas | strict turn, flush | played, flush | played, stashing |", "|---|---:|---:|---:|"]
    for replicas in REPLICATED:
        durations = Durations(forward=tuple(map(float, replicas)), backward=tuple(2.0 * r for r in replicas))
        made = [in_strict_turn("1f1b", replicas, 120, warm_ups(replicas))]
        made += [TIMETABLES[name](replicas, microbatches=120) for name in ("1f1b", "stashing")]
        shares = [f"{simulate(each, durations).bubble_share:.1%}" for each in made]
        lines.append(" | ".join([f"| {'-'.join(map(str, replicas))}", *shares]) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
