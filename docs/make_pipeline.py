"""Writes docs/pipeline.md and its pictures from the simulator: `.venv/bin/python docs/make_pipeline.py`."""

from pathlib import Path

from dovetail.plan.timetables import TIMETABLES, Durations, Simulated, simulate, steady_seconds
from dovetail.plan.timetables.alternating import in_strict_turn, warm_ups
from dovetail.plan.timetables.picture import svg, text
from dovetail.plan.timetables.shares import bubble_share

FOLDER = Path(__file__).parent
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

`dovetail.plan.partition.partition(graph, fabric)` cuts a measured graph into stages and hands out devices so that the
slowest stage is as fast as can be. `graph` comes from a `Profile` with layers, `fabric` from a `Cluster`.

- **Cuts.** Every set of layers that holds what its layers read from may be cut off, so skip connections are no special
  case: an output that is read three stages later crosses three cuts, and is paid for at each. Where branches make
  more such sets than can be tried, a family of good ones is, and the result says so (`complete=False`).
- **Times.** A stage of m replicas passes a microbatch in (C + S)/m seconds: C computes it, S sums gradients over its
  replicas, level by level: 4(k−1)/k·|w|/B where k units are joined by links of B bytes per second (both ways share
  them). A cut costs 2a/B times the share of microbatches that pass one port. The same rule holds at every level.
  Transfers overlap with computing and summing does not, unless `Terms(overlap=...)` says otherwise. With a flush or
  2BW gradients are summed once in a step. One stage's traffic is not added to another's at a shared port.
- **Memory.** Every stage, the last one and plain replication included: weight versions, gradients, optimizer state,
  and the activations of all microbatches in flight, or with recomputation their inputs and one set of activations.
- **Places.** Stages take neighbours along a row of devices, so one may hold part of a node, or one and a half; or equal
  parts of the row each run a copy of the pipeline, as when every node holds one. Unlike kinds are tried in every order.
- **Ties.** Fewer devices, then fewer stages, then the first in order: the same question has the same answer.

`best_shape` chooses depth × width × microbatch × recomputation for models of equal blocks, as PipeDream-2BW's planner
does, with uneven stages. `appraise` says what a division made by hand takes.

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

REPLICATED = ([1, 2], [2, 1, 1], [3, 2, 1], [2, 3, 1], [13, 2, 1])


def main() -> None:
    """Write the page and its pictures."""
    PAGE.write_text(page())
    for name, picture in pictures().items():
        (FOLDER / "timetables").mkdir(exist_ok=True)
        (FOLDER / "timetables" / f"{name}.svg").write_text(picture)


def page() -> str:
    """The whole page."""
    return HEAD + table() + drawings() + REPLICAS + replicated()


def pictures() -> dict[str, str]:
    """Every picture by name."""
    return {name: svg(pictured(name)) for name in PICTURED}


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
        pace = steady_seconds(
            lambda microbatches: TIMETABLES[name]([1] * depth, microbatches=count, steps=microbatches // count),
            Durations.equal(depth),
            microbatches=2 * count,
        )
        found = 1 - 3.0 / pace
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
