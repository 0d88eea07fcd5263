"""What must hold of a run whatever befell it, checked from what it left: its SQLite file, its checkpoints, and the
witness that the trainings kept themselves. Imports nothing of Dovetail: a mistake made there is not made here again.
"""

import contextlib
import dataclasses
import itertools
import json
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open

ENDS = ("finished", "stopped", "waiting", "lost", "failed", "cancelled", "halved", "pruned")
TAIL_BYTES = 1 << 15
Acknowledged = dict[tuple[str, str, int], float]


@dataclasses.dataclass(frozen=True)
class Step:
    """A line of the witness: a training took a step of a task (by its mark) in a process, at a time, on some cores."""

    mark: str
    build: str
    step: int
    process: int
    at: float
    cores: tuple[int, ...]


@dataclasses.dataclass
class Attempt:
    """One attempt of a task as the events have it, and the steps that were seen of it."""

    number: int
    placement: str
    devices: tuple[str, ...]
    start: float
    saved_before: int  # the last save that the store knew of when it began
    end: float = float("inf")
    ended_as: str = ""
    steps: list[Step] = dataclasses.field(default_factory=list)

    @property
    def is_spread(self) -> bool:
        """Whether its ranks were on several nodes."""
        return len({device.partition(":")[0] for device in self.devices}) > 1


@dataclasses.dataclass
class Findings:
    """What is wrong, and what was looked at to find that, since nothing wrong in nothing proves nothing: how many steps
    each attempt took that an earlier one had taken, how many tasks finished, the builds that were attempts, no trials,
    the attempts that trained over several nodes, and how many of these were lost.
    """

    wrong: list[str] = dataclasses.field(default_factory=list)
    redone: list[int] = dataclasses.field(default_factory=list)
    steps: int = 0
    finished: int = 0
    trained: set[str] = dataclasses.field(default_factory=set)
    spread: int = 0
    spread_lost: int = 0


def acknowledged(home: Path) -> Acknowledged:
    """The metrics that the store of a run holds at this moment; none before there is a store."""
    try:
        with contextlib.closing(_opened(home)) as database:
            rows = database.execute("SELECT task, name, step, value FROM points").fetchall()
    except sqlite3.OperationalError as error:
        if not any(words in str(error) for words in ("unable to open", "no such table")):
            raise  # it is there, and cannot be read
        return {}
    return {(task, name, step): value for task, name, step, value in rows}


def began(home: Path) -> bool:
    """Whether an attempt of any task has begun."""
    try:
        with contextlib.closing(_opened(home)) as database:
            return database.execute("SELECT 1 FROM events WHERE kind = 'started' LIMIT 1").fetchone() is not None
    except sqlite3.OperationalError:
        return False


def lost(before: Acknowledged, now: Acknowledged) -> list[str]:
    """What was acknowledged before and is not there now, or is another."""
    keys = [key for key, value in before.items() if now.get(key) != value]
    more = [f"... and {len(keys) - 3} more"] if len(keys) > 3 else []
    return [f"{task}: {name} at step {step} was there, then gone or another" for task, name, step in keys[:3]] + more


def witness_of(path: Path) -> list[Step]:
    """The witness's lines, in the order in which they were written."""
    if not path.exists():
        return []
    return list(_whole(path.read_text().splitlines()))


def _whole(lines: Iterable[str]) -> Iterator[Step]:
    """A writer that was killed where its line crosses from one page to the next leaves a part of it, and the line after
    is joined to that; whoever reads while others write may find a part at the end."""
    for line in lines:
        with contextlib.suppress(ValueError):
            mark, build, step, process, at, cores = json.loads(line[line.rindex('["') :])
            yield Step(mark, build, step, process, at, tuple(cores))


def at_work(path: Path) -> set[int]:
    """The processes that took a step in the last second, from the end of the witness."""
    if not path.exists():
        return set()
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        lines = file.read().decode().splitlines()
    since = time.time() - 1.0
    return {step.process for step in _whole(lines) if step.at > since}


def check(
    home: Path,
    witness: list[Step],
    *,
    reference: Path,
    save_every: int,
    tasks: int,
    steps: int,
    seen: Acknowledged,
    bound: bool = True,
    bare: Mapping[str, Path] | None = None,
) -> Findings:
    """Everything that must hold of the run of so many `tasks` at `home`, next to the undisturbed one at `reference`.
    `seen` are the metrics that its store held at some moment; `bound` says that each device is a core that its
    processes keep to; `bare` are files of tensors that a bare PyTorch loop made, by the names of tasks."""
    found = Findings(steps=len(witness))
    with contextlib.closing(_opened(home)) as database:
        names = dict(database.execute("SELECT identity, name FROM tasks").fetchall())
        rows = [
            (kind, task, attempt, at, json.loads(data))
            for kind, task, attempt, at, data in database.execute(
                "SELECT kind, task, attempt, at_seconds, data FROM events ORDER BY number"
            )
        ]
    if len(set(names.values())) != tasks or len(names) != tasks:
        found.wrong.append(f"{tasks} tasks were described; the store has {sorted(names.values())}")
    attempts = _attempts(rows)
    _give(witness, {names.get(task, task): each for task, each in attempts.items()}, found)
    for task, name in names.items():
        _ended_once(name, [row for row in rows if row[1] == task], steps, found)
        _steps(name, attempts[task], steps, save_every, found)
    spread = [attempt for each in attempts.values() for attempt in each if attempt.steps and attempt.is_spread]
    found.spread, found.spread_lost = len(spread), sum(attempt.ended_as == "lost" for attempt in spread)
    _devices(rows, found)
    _at_once([attempt for each in attempts.values() for attempt in each], found)
    if bound:
        _cores(witness, found)
    _metrics(acknowledged(home), acknowledged(reference), seen, found)
    for task, name in names.items():
        compare_checkpoints(name, home / "checkpoints" / task, reference / "checkpoints" / task, steps, found)
        if bare and name in bare:
            _as_bare(name, home / "checkpoints" / task, bare[name], steps, found)
    return found


def _opened(home: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{home / 'store.sqlite'}?mode=ro", uri=True, timeout=30)


def _attempts(rows: Iterable[tuple[Any, ...]]) -> dict[str, list[Attempt]]:
    found: dict[str, list[Attempt]] = defaultdict(list)
    saved: dict[str, int] = defaultdict(int)
    for kind, task, number, at, data in rows:
        if kind == "started":
            found[task].append(Attempt(number, data["placement"], tuple(data["devices"]), at, saved[task]))
        elif kind == "saved":
            saved[task] = max(saved[task], data["step"])
        elif kind in ENDS and found[task] and found[task][-1].end == float("inf"):
            found[task][-1].end, found[task][-1].ended_as = at, kind
    return found


def _give(witness: list[Step], attempts: dict[str, list[Attempt]], found: Findings) -> None:
    """Give each build's steps to the attempt in whose time it took the first; what began in none was a trial, and those
    begin at the first step."""
    builds: dict[tuple[str, str], list[Step]] = defaultdict(list)
    for step in witness:
        builds[step.mark, step.build].append(step)
    for (mark, build), steps in builds.items():
        owner = next((one for one in attempts.get(mark, ()) if one.start <= steps[0].at < one.end), None)
        if owner is None:
            if steps[0].step != 1:
                found.wrong.append(f"{mark}: process {steps[0].process} went on at step {steps[0].step} in no attempt")
            continue
        found.trained.add(build)
        if owner.steps:
            found.wrong.append(f"{mark}: attempt {owner.number} was trained by two processes")
        owner.steps += steps


def _ended_once(name: str, rows: list[tuple[Any, ...]], steps: int, found: Findings) -> None:
    ends = [data["step"] for kind, _, _, _, data in rows if kind == "finished"]
    if ends != [steps]:
        found.wrong.append(f"{name}: must finish once, at step {steps}; it finished at {ends}")
    found.finished += ends == [steps]
    found.wrong += [f"{name}: failed: {data['reason']}" for kind, _, _, _, data in rows if kind == "failed"]
    saved = [data["step"] for kind, _, _, _, data in rows if kind == "saved"]
    if any(later <= earlier for earlier, later in itertools.pairwise(saved)):
        found.wrong.append(f"{name}: saved a step again: {saved}")


def _steps(name: str, attempts: list[Attempt], steps: int, save_every: int, found: Findings) -> None:
    """No step skipped, none repeated beyond the last save."""
    furthest = 0
    for attempt in attempts:
        taken = [step.step for step in attempt.steps]
        if not taken:
            continue
        if taken != list(range(taken[0], taken[0] + len(taken))):
            found.wrong.append(f"{name}: attempt {attempt.number} took its steps out of order")
        if taken[0] > furthest + 1:
            found.wrong.append(f"{name}: attempt {attempt.number} began at {taken[0]} after step {furthest}: skipped")
        if taken[0] <= attempt.saved_before:
            found.wrong.append(
                f"{name}: attempt {attempt.number} began at {taken[0]}, though step {attempt.saved_before} was saved"
            )
        again = furthest - taken[0] + 1
        if furthest:
            found.redone.append(again)
        if again > save_every:
            found.wrong.append(f"{name}: attempt {attempt.number} took {again} steps again, more than {save_every}")
        furthest = max(furthest, taken[-1])
    if furthest != steps:
        found.wrong.append(f"{name}: must be trained to step {steps}; it was to {furthest}")


def _devices(rows: Iterable[tuple[Any, ...]], found: Findings) -> None:
    """From the events alone: a device is in one placement at a time."""
    holds: dict[str, str] = {}
    placements: dict[str, str] = {}  # the placement of each task that runs
    for kind, task, _, _, data in rows:
        if kind == "started":
            if not data["devices"]:
                found.wrong.append(f"{data['placement']}: must have devices; it was given none")
            for device in data["devices"]:
                if holds.get(device, data["placement"]) != data["placement"]:
                    found.wrong.append(f"{device}: given to {data['placement']} while {holds[device]} held it")
                holds[device] = data["placement"]
            placements[task] = data["placement"]
        elif kind == "released":
            holds = {device: name for device, name in holds.items() if name != data["placement"]}
        elif kind == "lost" and data["reason"] == "its controller ended":
            holds = {device: name for device, name in holds.items() if name != placements.get(task)}


def _at_once(attempts: Iterable[Attempt], found: Findings) -> None:
    """From both: two attempts that were given one device did not train at the same time, unless side by side, in one
    process or in one placement."""
    by_device: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        for device in attempt.devices if attempt.steps else ():
            by_device[device].append(attempt)
    for device, each in by_device.items():
        for before, after in itertools.pairwise(sorted(each, key=lambda attempt: attempt.steps[0].at)):
            one, other = before.steps[-1], after.steps[0]
            if other.at < one.at and other.process != one.process and before.placement != after.placement:
                found.wrong.append(f"{device}: processes {one.process} and {other.process} trained on it at once")


def _cores(witness: list[Step], found: Findings) -> None:
    """From the witness alone: no process took a step on a core between two steps of one training of another."""
    builds: dict[tuple[int, str], list[Step]] = defaultdict(list)
    for step in witness:
        for core in step.cores:
            builds[core, step.build].append(step)
    until: dict[int, Step] = {}  # by core, the step that ends last among those looked at
    for (core, _), steps in sorted(builds.items(), key=lambda pair: pair[1][0].at):
        before = until.get(core)
        if before is not None and steps[0].at < before.at and steps[0].process != before.process:
            found.wrong.append(f"core {core}: processes {before.process} and {steps[0].process} trained on it at once")
        if before is None or steps[-1].at > before.at:
            until[core] = steps[-1]


def _metrics(final: Acknowledged, reference: Acknowledged, seen: Acknowledged, found: Findings) -> None:
    found.wrong += lost(seen, final)
    if not reference:
        found.wrong.append("the undisturbed run must have metrics; it has none")
    if final != reference:
        apart = {key for key in final.keys() | reference.keys() if final.get(key) != reference.get(key)}
        found.wrong.append(f"{len(apart)} metrics are not those of the undisturbed run, such as {sorted(apart)[0]}")


def compare_checkpoints(name: str, one: Path, other: Path, steps: int, found: Findings) -> None:
    """The last checkpoints, bit by bit: parameters, optimizer, schedule, data position, random state."""
    ours, theirs = (_last(folder, steps) for folder in (one, other))
    if not ours or not theirs:
        found.wrong.append(f"{name}: must have a checkpoint of step {steps}")
        return
    right = dict(_contents(theirs[0]))
    if not any(key.startswith("tensors/") for key in right):
        found.wrong.append(f"{name}: a checkpoint must hold tensors; {theirs[0]} holds none")
    for path in ours:
        left = dict(_contents(path))
        apart = [key for key in left.keys() | right.keys() if left.get(key) != right.get(key)]
        if apart:
            found.wrong.append(
                f"{name}: {len(apart)} of {len(left)} parts are not bit-equal, such as {sorted(apart)[0]}"
            )


def _as_bare(name: str, one: Path, bare: Path, steps: int, found: Findings) -> None:
    """The model of the last checkpoint is that of a bare PyTorch loop, bit by bit."""
    right = dict(_tensors(bare))
    for path in _last(one, steps):
        left = dict(_contents(path))
        apart = [key for key, value in right.items() if left.get(f"tensors/model/{key}") != value]
        if apart or not right:
            found.wrong.append(
                f"{name}: {len(apart)} of {len(right)} tensors are not the bare loop's, such as {apart[:1]}"
            )


def _last(folder: Path, steps: int) -> list[Path]:
    return sorted(folder.glob(f"step-{steps:09d}-attempt-*"))


def _contents(path: Path) -> Iterator[tuple[str, Any]]:
    for piece in sorted(path.glob("piece-*.safetensors")):
        yield from ((f"tensors/{name}", value) for name, value in _tensors(piece))
    index = json.loads(json.loads((path / "index.json").read_text())["index"])
    # How far the store's knowledge lagged behind differs from run to run; what was learned must not.
    yield from ((f"values/{name}", value) for name, value in index["values"].items() if name != "progress")


def _tensors(path: Path) -> Iterator[tuple[str, Any]]:
    with safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118  it is no dict
            tensor = file.get_tensor(name)
            yield name, (str(tensor.dtype), tuple(tensor.shape), tensor.numpy().tobytes())
