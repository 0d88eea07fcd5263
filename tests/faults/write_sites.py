"""Every place that writes a file, and what must be so there afterwards, whatever happened while it wrote.

Run as `python -m tests.faults.write_sites MOST [NAME ...]`: prints what calls each site makes, in how many ways it can
be interrupted, of which so many are drawn and tried, and what was wrong. A process of its own, with one thread, so that
it can be forked.
"""

import contextlib
import dataclasses
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from dovetail.describe import carried
from dovetail.store import ControllerLock, Point, RemoteFolder, Store, check_fence, raise_fence, write_atomically
from dovetail.testing import programs
from dovetail.trackers import parse_tracker
from dovetail.trackers.cursor import TrackerCursor
from dovetail.trackers.sender import TrackerSender
from dovetail.trackers.store_runs import StoreRuns
from dovetail.train import TrainingState, checkpoint
from dovetail.train.base import SessionMember
from dovetail.train.build import build
from dovetail.train.export import export
from dovetail.train.resident import RESIDENT
from dovetail.vocabulary import CheckpointError, DovetailError, Profile, Program, Stop, Task, read_event
from dovetail.web.report import write_report
from tests.faults.system_calls import Ended, traced

FULL = "No space left on device"


@dataclasses.dataclass(frozen=True)
class Site:
    """A place that writes.

    `prepare` makes what is there before; `act` writes; `sound` raises AssertionError unless what is there is what was
    there before or what was to be written, whole. `refusals` are what `act` may raise where the disk is full.
    """

    prepare: Callable[[Path], None]
    act: Callable[[Path], object]
    sound: Callable[[Path, Ended], None]
    refusals: tuple[str, ...] = ("DovetailError",)


def interrupted(site: Site, most: int) -> dict[str, object]:
    """Interrupt the site at each of its calls in each way, or in so many that are drawn; then go on as the next process
    would."""
    # In memory where that can be: syncing is what takes time, and only a power cut asks for it.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as name:
        base = Path(name) / "before"
        base.mkdir()
        site.prepare(base)
        _copied(base, site.act)  # what is imported on the way is imported now
        whole = traced(lambda: site.act(base), base)
        assert whole.how == "done", whole
        shutil.rmtree(base)
        base.mkdir()
        site.prepare(base)
        ways = [(at, mode) for at, call in enumerate(whole.calls) for mode in _modes(call)]
        # Killed after a call is killed before the next one, so `after` has something of its own after the last.
        ways.append((len(whole.calls) - 1, "after"))
        tried = random.sample(ways, min(most, len(ways)))
        wrong = [problem for at, mode in tried if (problem := _once(site, base, at, mode))]
    return {"calls": list(whole.calls), "ways": len(ways), "wrong": wrong}


def _modes(call: str) -> tuple[str, ...]:
    during = ("during",) if call in ("write", "pwrite") else ()
    full = () if call in ("unlink", "rmdir") else ("full",)  # removing takes no room
    return ("before", *during, *full)


def _copied(base: Path, act: Callable[[Path], object]) -> object:
    with tempfile.TemporaryDirectory(dir=base.parent) as folder:
        shutil.copytree(base, folder, dirs_exist_ok=True)
        return act(Path(folder))


def _once(site: Site, base: Path, at: int, mode: str) -> str:
    def go(folder: Path) -> str:
        ended = traced(lambda: site.act(folder), folder, at=at, mode=mode)
        call = f"{mode} call {at} ({ended.calls[at]}), which {ended.how}"
        if mode == "full" and ended.how not in ("done", *site.refusals):
            return f"{call}: {ended.said}"
        if mode == "full" and ended.how != "done" and "disk" not in ended.said.replace(FULL, "disk"):
            return f"{call} without saying that the disk is full: {ended.said}"
        try:
            site.sound(folder, ended)
            # Whoever comes next finds everything in order.
            site.act(folder)
            site.sound(folder, Ended((), "done"))
        except (AssertionError, DovetailError, OSError, ValueError) as error:
            return f"{call}: {type(error).__name__}: {error}"
        return ""

    return str(_copied(base, go))


# Checkpoints


def _state(step: int) -> TrainingState:
    tensors = {"model/weight": torch.full((2000,), float(step)), "optimizer/moment": torch.arange(8.0) * step}
    return TrainingState(step=step, tensors=tensors, values={"progress": {"metrics": {}, "points": []}})


def _save(folder: Path) -> None:
    checkpoint.write(folder / "t", _state(20), task="t", attempt=1, retention=checkpoint.Retention(count=1))


def _saved(folder: Path, ended: Ended) -> None:
    found, damages = checkpoint.recover(folder / "t")
    assert not damages, damages
    assert found is not None, "nothing can be loaded"
    assert found.step == 20 if ended.how == "done" else found.step in (10, 20)
    assert all(torch.equal(value, _state(found.step).tensors[name]) for name, value in found.tensors.items())
    assert not list((folder / "t").glob(".*ing-*")), "something was left behind"


CHECKPOINT = Site(
    lambda folder: checkpoint.write(folder / "t", _state(10), task="t", attempt=1) and None,
    _save,
    _saved,
    ("CheckpointError",),
)


def _elsewhere(folder: Path) -> RemoteFolder:
    return RemoteFolder(f"file://{folder}/t")


def _save_elsewhere(folder: Path) -> None:
    checkpoint.write(_elsewhere(folder), _state(20), task="t", attempt=1, retention=checkpoint.Retention(count=1))


def _saved_elsewhere(folder: Path, ended: Ended) -> None:
    found, damages = checkpoint.recover(_elsewhere(folder))
    # Without a rename an index may be there in part; its checksum says so. Nothing else makes a checkpoint exist.
    assert all("index.json" in damage.reason for damage in damages), damages
    assert found is not None, "nothing can be loaded"
    assert found.step == 20 if ended.how == "done" else found.step in (10, 20)
    assert all(torch.equal(value, _state(found.step).tensors[name]) for name, value in found.tensors.items())
    assert all(list(each.glob("*index.json")) for each in (folder / "t").glob("step-*")), "something was left behind"


CHECKPOINT_ELSEWHERE = Site(
    lambda folder: checkpoint.write(_elsewhere(folder), _state(10), task="t", attempt=1) and None,
    _save_elsewhere,
    _saved_elsewhere,
    ("CheckpointError",),
)


def _fenced(folder: Path, ended: Ended) -> None:
    check_fence(folder / "t", 2)
    if ended.how == "done":
        try:
            check_fence(folder / "t", 1)
        except CheckpointError:
            return
        raise AssertionError("the fence is not raised")


FENCE = Site(
    lambda folder: raise_fence(folder / "t", 1), lambda folder: raise_fence(folder / "t", 2), _fenced, ("OSError",)
)

# The store: events, metrics, profiles and plans

EVENTS = 5

TASK = Task(name="a", program=Program(reference="dovetail.testing.programs:tied"), stop=Stop(steps=3))


def _add(folder: Path, batch: int) -> None:
    with ControllerLock(folder), Store(folder, write=True) as store:
        store.add(
            tasks=[("w", TASK)],
            events=[read_event("warned", at_seconds=1.0, data={"message": f"{batch}-{n}"}) for n in range(EVENTS)],
            points=[
                Point(task=TASK.identity, name="loss", step=batch * 100 + n, value=0.5, at_seconds=1.0)
                for n in range(EVENTS)
            ],
            profiles=[Profile(family=f"f{batch}", kind="cpu", count=1, step_seconds=1.0, peak_bytes=1)],
        )


def _kept(first: int) -> Callable[[Path, Ended], None]:
    def sound(folder: Path, ended: Ended) -> None:
        if not (folder / "store.sqlite").exists():
            assert not first
            assert ended.how != "done"
            return
        # As the next controller does: what was begun and not committed is undone by opening it.
        with Store(folder, write=True) as store:
            said = [event.message for _, event in store.events()]
            points = {point.step // 100 for point in store.points(TASK.identity)}
            profiles = {profile.family for profile in store.profiles()}
        batches = list(dict.fromkeys(message.partition("-")[0] for message in said))
        assert len(said) == len(set(said)), "an event is there twice"
        assert all(said.count(f"{batch}-{n}") for batch in batches for n in range(EVENTS)), "half a batch is there"
        assert points == {int(batch) for batch in batches}, "events without their metrics"
        assert profiles == {f"f{batch}" for batch in batches}
        assert not first or "0" in batches, "what was acknowledged is gone"
        assert ended.how != "done" or str(first) in batches

    return sound


def _add_once(folder: Path) -> None:
    try:
        with Store(folder) as store:
            there = {event.message for _, event in store.events()}
    except DovetailError:
        there = set()
    if "1-0" not in there:
        _add(folder, 1)


def _new_once(folder: Path) -> None:
    try:
        with Store(folder) as store:
            there = list(store.events())
    except DovetailError:
        there = []
    if not there:
        _add(folder, 0)


NEW_STORE = Site(lambda folder: None, _new_once, _kept(0), ("StoreError", "StoreRefused", "OSError"))
STORE = Site(lambda folder: _add(folder, 0), _add_once, _kept(1), ("StoreError", "StoreRefused", "OSError"))

# What is made for people


def _report(folder: Path) -> None:
    with Store(None, write=True) as store:
        store.add(tasks=[("w", TASK)])
        write_report(store, folder / "report.html")


def _reported(folder: Path, ended: Ended) -> None:
    page = (folder / "report.html").read_text()
    assert page == "the page before" or page.rstrip().endswith("</html>"), "half a page"
    assert ended.how != "done" or page != "the page before"
    assert ended.how == "killed" or [each.name for each in folder.iterdir()] == ["report.html"]


REPORT = Site(lambda folder: (folder / "report.html").write_text("the page before") and None, _report, _reported)


def _board(folder: Path) -> None:
    (folder / "home").mkdir(exist_ok=True)
    points = [Point(task=TASK.identity, name="loss", step=n, value=float(n), at_seconds=float(n)) for n in range(9)]
    address = parse_tracker(f"tensorboard:{folder / 'board'}")
    cursor = TrackerCursor(folder / "home", address.kind, address.place)
    with contextlib.closing(cursor), Store(None, write=True) as store:
        store.add(tasks=[("w", TASK)], points=points)
        runs = StoreRuns(store, owner=cursor.store)
        for error in TrackerSender(runs, address.connect(), cursor, home=folder).send_new():
            raise error


def _boarded(folder: Path, ended: Ended) -> None:
    from tensorboard.compat.proto.event_pb2 import Event as Record

    if ended.how != "done":
        return  # half a file may be there; whoever comes next cuts it off
    steps = []
    for file in (folder / "board").glob("*/*tfevents*"):
        content = file.read_bytes()
        while content:
            size = int.from_bytes(content[:8], "little")
            record = Record.FromString(content[12 : 12 + size])
            steps += [record.step for value in record.summary.value if value.tag == "loss"]
            content = content[16 + size :]
    assert steps == list(range(9)), steps


TENSORBOARD = Site(lambda folder: None, _board, _boarded, ("DovetailError", "OSError", "OperationalError"))


def _trained(folder: Path) -> None:
    session = RESIDENT.open(
        [SessionMember(training=build(TASK), seed=0)], device=torch.device("cpu"), threads=1, knobs={}
    )
    session.advance()
    checkpoint.write(folder / "t", session.state(), task="a", attempt=1)
    session.close()
    (folder / "out").mkdir()


def _export(folder: Path) -> None:
    export(TASK, folder / "t", folder / "out" / "model.safetensors")


def _exported(folder: Path, ended: Ended) -> None:
    from safetensors.torch import load_file

    path = folder / "out" / "model.safetensors"
    assert ended.how != "done" or path.exists()
    if path.exists():
        assert load_file(path)
    assert ended.how == "killed" or len(list((folder / "out").iterdir())) == path.exists()


EXPORT = Site(_trained, _export, _exported, ("CheckpointError",))

# Programs that travel as pickles


def _carry(folder: Path) -> None:
    os.environ["XDG_CONFIG_HOME"] = str(folder)
    carried.carry("doubled", lambda: 42)
    carried.deposit(folder, write=write_atomically)


def _carried(folder: Path, ended: Ended) -> None:
    os.environ["XDG_CONFIG_HOME"] = str(folder)
    if (folder / "programs" / "doubled.pickle").exists():
        assert carried.fetch(folder, "doubled")() == 42
    else:
        assert ended.how != "done"


PROGRAM = Site(lambda folder: None, _carry, _carried, ("OSError", "ProgramError"))

SITES = {
    "checkpoint": CHECKPOINT,
    "checkpoint elsewhere": CHECKPOINT_ELSEWHERE,
    "fence": FENCE,
    "new store": NEW_STORE,
    "store": STORE,
    "report": REPORT,
    "tensorboard": TENSORBOARD,
    "export": EXPORT,
    "program": PROGRAM,
}

if __name__ == "__main__":
    assert programs  # the program that is trained, importable in any child
    count, *names = sys.argv[1:]
    print(json.dumps({name: interrupted(SITES[name], int(count)) for name in names or SITES}))
