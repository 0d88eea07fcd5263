"""Checkpoints in an object store: every one that was acknowledged loads, bit by bit, whatever happened on the way.

A real server of S3's protocol (moto's, a process of its own), and a proxy between it and the saver that spoils a fifth
of all requests: answers half a second late, 503 SlowDown, connections cut in the middle of a request or of an answer;
and listings miss what was written in the last seconds. A process saves one checkpoint after another, of two tasks by
turns: one keeps all of them, the other the last two. It is killed (-9) at random moments, and another goes on: it must
find what was acknowledged, in spite of the listings. At the end all that were acknowledged and kept are read and
compared. One that was whole when its writer died, just before it was acknowledged, may be gone on from: it is adopted.

`python bench/object_store.py [--saves 200] [--kills 20] [--quick] [--check]`. The same saves without faults and without
kills, to the server and to a local folder, are set beside it.
"""

import argparse
import dataclasses
import multiprocessing
import multiprocessing.connection
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import s3_server
import torch
from reporting import Bar, finish

from dovetail.store import Folder, folder_of, raise_fence
from dovetail.train import TrainingState, checkpoint
from dovetail.vocabulary import CheckpointError

SHARE = 0.2
LAG_SECONDS = 3.0
TASKS = {"all-kept": 10_000, "two-kept": 2}
"""The tasks that are saved by turns, and how many checkpoints each keeps."""
NUMBERS = 1 << 16
"""In the largest tensor of a checkpoint: 256 KiB, and again as much for an optimizer."""


@dataclasses.dataclass
class Outcome:
    """What came of one run of saves."""

    seconds: list[float] = dataclasses.field(default_factory=list)
    acknowledged: dict[str, list[str]] = dataclasses.field(default_factory=lambda: {task: [] for task in TASKS})
    adopted: dict[str, list[str]] = dataclasses.field(default_factory=lambda: {task: [] for task in TASKS})
    failed: int = 0
    kills: int = 0
    forgotten: int = 0
    wrong: int = 0
    damaged: int = 0
    resumed: int = 0


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--saves", type=int, default=200)
    arguments.add_argument("--kills", type=int, default=20)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--check", action="store_true")
    arguments.add_argument("--quick", action="store_true", help="8 saves and 2 kills; writes nothing")
    chosen = arguments.parse_args()
    saves, kills, slow_seconds = (8, 2, 0.05) if chosen.quick else (chosen.saves, chosen.kills, 0.5)
    multiprocessing.set_start_method("forkserver")
    multiprocessing.set_forkserver_preload(["dovetail.train", "dovetail.engines", "dovetail.verbs.console", "s3fs"])
    faults = s3_server.Faults.share(SHARE, lag_seconds=LAG_SECONDS, slow_seconds=slow_seconds)
    with s3_server.serve_s3() as upstream, tempfile.TemporaryDirectory() as local:
        with s3_server.FaultyProxy(upstream, faults, seed=chosen.seed) as proxy:
            root = f"s3://{s3_server.BUCKET}/faults"
            spoiled = run(root, proxy.address, saves=saves, kills=kills, seed=chosen.seed)
            load_all(spoiled, root, proxy.address)
            counts, requests = dict(proxy.counts), proxy.requests
        with s3_server.FaultyProxy(upstream, s3_server.Faults()) as plain:
            smooth = run(f"s3://{s3_server.BUCKET}/smooth", plain.address, saves=saves, kills=0, seed=chosen.seed)
            load_all(smooth, f"s3://{s3_server.BUCKET}/smooth", plain.address)
            smooth_requests = plain.requests
        beside = run(local, "", saves=saves, kills=0, seed=chosen.seed)
        load_all(beside, local, "")
    rows = [
        row("S3, faults and kills", spoiled, requests, counts),
        row("S3", smooth, smooth_requests, {}),
        row("a local folder", beside, None, {}),
    ]
    return finish("object_store", rows, bars(spoiled, requests, counts, saves=saves, kills=kills),
                  check=chosen.check, quick=chosen.quick)  # fmt: skip


def bars(found: Outcome, requests: int, counts: dict[str, int], *, saves: int, kills: int) -> list[Bar]:
    injected = sum(counts.get(kind, 0) for kind in ("slow", "slow_down", "request_cut", "answer_cut"))
    return [
        Bar("saves that were acknowledged", sum(map(len, found.acknowledged.values())), least=saves),
        Bar("kills", found.kills, least=kills),
        Bar("share of requests that met a fault", injected / requests, least=0.7 * SHARE),
        Bar("listings that missed something", counts.get("lagging_list", 0), least=1),
        Bar("acknowledged checkpoints that a process which went on did not find", found.forgotten, most=0),
        Bar("acknowledged checkpoints that do not load, or with other bits", found.wrong, most=0),
    ]


def row(name: str, found: Outcome, requests: int | None, counts: dict[str, int]) -> dict[str, Any]:
    seconds = sorted(found.seconds)
    return {
        "place": name,
        "saves": sum(map(len, found.acknowledged.values())),
        "failed": found.failed,
        "kills": found.kills,
        "resumed": found.resumed,
        "adopted": sum(map(len, found.adopted.values())),
        "set_aside": found.damaged,
        "forgotten": found.forgotten,
        "wrong": found.wrong,
        "median_seconds": statistics.median(seconds),
        "p95_seconds": seconds[int(0.95 * (len(seconds) - 1))],
        "most_seconds": seconds[-1],
        "requests": requests,
        **counts,
    }


def run(root: str, endpoint: str, *, saves: int, kills: int, seed: int) -> Outcome:
    """Save until so many are acknowledged, with a process that is killed so often, spread over all of it."""
    generator, outcome = random.Random(seed), Outcome()
    # How many saves after the last kill the next one comes, and how far into the save after them.
    ends = [*(saves * (number + 1) // (kills + 1) for number in range(kills)), None]
    for attempt, end in enumerate(ends, start=1):
        done = sum(map(len, outcome.acknowledged.values()))
        wait = generator.uniform(0.0, 1.5 * statistics.median(outcome.seconds or [0.2]))
        reader, writer = multiprocessing.Pipe(duplex=False)
        saver = multiprocessing.Process(
            target=save_all, args=(writer, root, endpoint, attempt, saves, outcome.acknowledged)
        )
        saver.start()
        writer.close()
        _listen(reader, outcome, until=None if end is None else max(end, done + 1))
        if end is not None and saver.is_alive():
            time.sleep(wait)
            saver.kill()
            outcome.kills += 1
            _listen(reader, outcome, until=None)  # what it acknowledged before it died
        saver.join()
        reader.close()
    return outcome


def _listen(reader: multiprocessing.connection.Connection, outcome: Outcome, *, until: int | None) -> None:
    """Take in what the saver says, until so many are acknowledged or it has ended."""
    while until is None or sum(map(len, outcome.acknowledged.values())) < until:
        try:
            said = reader.recv()
        except EOFError:
            return
        if said["what"] == "saved":
            outcome.acknowledged[said["task"]].append(said["name"])
            outcome.seconds.append(said["seconds"])
        elif said["what"] == "adopted":
            outcome.adopted[said["task"]].append(said["name"])
        else:
            for name, count in said.items():
                if name != "what":
                    setattr(outcome, name, getattr(outcome, name) + count)


def save_all(
    writer: multiprocessing.connection.Connection,
    root: str,
    endpoint: str,
    attempt: int,
    saves: int,
    acknowledged: dict[str, list[str]],
) -> None:
    """What a process does that begins: find the newest checkpoint of each task, compare, and go on saving."""
    _connect(endpoint)
    steps = {task: _go_on(writer, folder_of(root) / task, task, attempt, names) for task, names in acknowledged.items()}
    left = saves - sum(map(len, acknowledged.values()))
    while left > 0:
        task = min(steps, key=lambda each: steps[each])
        steps[task] += 1
        state, began = state_at(task, steps[task]), time.monotonic()
        try:
            path, _ = checkpoint.write(folder_of(root) / task, state, task=task, attempt=attempt,
                                       retention=checkpoint.Retention(count=TASKS[task]))  # fmt: skip
        except CheckpointError as error:
            writer.send({"what": "failed", "failed": 1})
            print(error)
            continue
        writer.send({"what": "saved", "task": task, "name": path.name, "seconds": time.monotonic() - began})
        left -= 1


def _go_on(
    writer: multiprocessing.connection.Connection, folder: Folder, task: str, attempt: int, names: list[str]
) -> int:
    """The step from which a task goes on; says how that compares with what was acknowledged."""
    raise_fence(folder, attempt)
    state, damages = checkpoint.recover(folder)
    newest = max((checkpoint.step_of(Path(name)) for name in names), default=0)
    step = state.step if state is not None else 0
    wrong = state is not None and not _equal(state, state_at(task, step))
    writer.send({"what": "resumed", "resumed": 1, "forgotten": int(step < newest), "wrong": int(wrong),
                 "damaged": len(damages)})  # fmt: skip
    if step > newest:
        name = next(path.name for path in checkpoint.complete(folder) if checkpoint.step_of(path) == step)
        writer.send({"what": "adopted", "task": task, "name": name})
    return max(step, newest)


def state_at(task: str, step: int) -> TrainingState:
    """What a task's training is at a step: other numbers at each, the same in every process."""
    generator = torch.Generator().manual_seed(step * len(TASKS) + list(TASKS).index(task))
    tensors = {name: torch.randn(NUMBERS, generator=generator) for name in ("model/weight", "optimizer/moment")}
    return TrainingState(step=step, tensors=tensors, values={"progress": {"metrics": {}, "points": []}})


def load_all(outcome: Outcome, root: str, endpoint: str) -> None:
    """Read every acknowledged checkpoint that retention keeps, and compare it with what was saved."""
    _connect(endpoint)
    for task, names in outcome.acknowledged.items():
        kept = sorted({*names, *outcome.adopted[task]})[-TASKS[task] :]  # names sort by step, then by attempt
        for name in kept:
            outcome.wrong += not _loads(folder_of(root) / task / name, task)


def _loads(path: Folder, task: str) -> bool:
    try:
        return _equal(checkpoint.read(path), state_at(task, checkpoint.step_of(path)))
    except CheckpointError as error:
        print(f"{path} does not load: {error}")
        return False


def _equal(one: TrainingState, other: TrainingState) -> bool:
    same = one.step == other.step and one.tensors.keys() == other.tensors.keys() and one.values == other.values
    return same and all(torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items())


def _connect(endpoint: str) -> None:
    """Where S3 is for this process from now on."""
    if endpoint:
        import s3fs

        os.environ.update(s3_server.environment(endpoint))
        s3fs.S3FileSystem.clear_instance_cache()


if __name__ == "__main__":
    raise SystemExit(main())
