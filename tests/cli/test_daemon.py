"""The daemon as a real process: asked over its socket and over loopback, killed, and started again."""

import json
import signal
import socket
import stat
import time
from pathlib import Path

import psutil
import pytest

from dovetail.control import ask, open_result
from dovetail.store import Store, holder
from dovetail.vocabulary import StoreError
from tests.cli.processes import HOME, begin, dovetail, end, events, in_process, spans, until, write

PROGRAMS = """
import time

import torch

import dovetail as dt


def line(slope=3.0, learning_rate=0.1, pause=0.0):
    model = torch.nn.Linear(1, 1)

    def loss(model, batch):
        time.sleep(pause)
        return (model(batch) - slope * batch).square().mean()

    return dt.Training(
        model=model,
        batches=[torch.ones(4, 1)],
        loss=loss,
        optimizer=torch.optim.Adam(model.parameters(), lr=learning_rate),
    )


def broken():
    raise LookupError("the data is not here")
"""

SWEEP = """
import dovetail as dt

tasks = [dt.task("programs.py:line", name=name, steps=1_000_000, pause=0.005) for name in ("one", "two", "three")]
workload = dt.workload(tasks)
halved = dt.grid("programs.py:line", slope=[1, 2], steps=9, halving=dt.Halving(metric="m", first_steps=3))
held = dt.grid(lambda: None, steps=9)
"""


def standing(folder):
    """What the daemon says of each task; nothing where none runs yet."""
    try:
        return {row["task"]: row for row in ask(folder / HOME, {"do": "list"})["tasks"]}
    except StoreError:
        return {}


def saved(folder, name):
    return [event.step for event in events(folder, name, "saved")]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What two lives of a daemon said and left."""
    folder = write(tmp_path_factory.mktemp("daemon"), programs=PROGRAMS, sweep=SWEEP)
    told = {"folder": folder}

    def say(*words):
        told[words] = in_process(*words, cwd=folder)

    process = begin("daemon", "--save-seconds", "1", "--round", "3s", cwd=folder)
    try:
        until(lambda: holder(folder / HOME), what="a daemon")
        told["socket"] = Path(holder(folder / HOME)["socket"])
        told["modes"] = [stat.S_IMODE(each.stat().st_mode) for each in (told["socket"].parent, told["socket"])]
        told["submit"] = dovetail("submit", "sweep.py", "--priority", "2", cwd=folder)
        until(lambda: _running(folder), what="a task that has saved")
        # Somebody who begins to speak and says no more is nobody's problem.
        with socket.socket(socket.AF_UNIX) as silent:
            silent.connect(str(told["socket"]))
            silent.sendall(b'{"do": "sub')
            say("list")
            say("list", "--json")
        whose = ("--deadline", "2h", "--entity", "vision")
        say("submit", "programs.py:line", "slope=2", "--steps", "40", "--name", "short", *whose)
        until(lambda: standing(folder).get("short", {}).get("status") == "finished", what="the end of 'short'")
        say("submit", "programs.py:broken", "--steps", "5")
        told["broken"] = until(lambda: _failed(folder, "broken"), what="the failure")
        # As editors save: whoever's turn begins meanwhile finds the whole file, before or after.
        (folder / "mended.py").write_text(PROGRAMS.replace("    raise LookupError", "    return line()  #"))
        (folder / "mended.py").replace(folder / "programs.py")
        told["mended"] = in_process("submit", "programs.py:broken", "--steps", "5", cwd=folder)
        until(lambda: standing(folder)["broken"]["status"] == "finished", what="the end of the mended task")
        # Turns change every three seconds: one that has just begun has its turn for long enough.
        told["paused"] = name = until(lambda: _begun(folder), what="a turn that begins")
        say("pause", name)
        until(lambda: standing(folder)[name]["status"] == "paused", what="a paused task")
        say("clone", name, "learning_rate=0.5", "--warm", "--name", "warm")
        say("clone", name, "slope=5", "--fresh", "--name", "fresh")
        say("priority", "warm", "50")
        say("deadline", "warm", "fresh", "2h")
        say("deadline", "warm", "none")
        until(lambda: standing(folder)["warm"]["step"] and saved(folder, "warm"), what="the clone's first save")
        told["bad"] = {words: in_process(*words, cwd=folder) for words, _ in BAD}
        told["workers"] = psutil.Process(process.pid).children(recursive=True)
        process.kill()
    finally:
        _end(process)
    told["killed at"] = {each: max(saved(folder, each), default=0) for each in ("one", "two", "three", "warm")}
    told["none"] = in_process("list", cwd=folder)
    psutil.wait_procs(told["workers"], timeout=300)

    process = begin("daemon", "--port", "0", "--save-seconds", "1", "--round", "3s", cwd=folder)
    try:
        until(lambda: standing(folder), what="a daemon on loopback")
        told["note"] = holder(folder / HOME)
        told["refused"] = _over(told["note"]["port"], {"do": "list", "token": "guessed"})
        told["restarted"] = standing(folder)
        others = [each for each in ("two", "three") if each != name]
        # Several at a time; one that cannot be keeps nobody else from it.
        told["several"] = in_process("cancel", "short", *others, cwd=folder)
        say("resume", name)
        say("priority", name, "50")  # as the clone: at 2 it would wait many rounds for its turn
        turns = len(spans(folder, name))
        until(lambda: len(spans(folder, name)) > turns, what="the resumed task's turn")
        told["second"] = dovetail("daemon", cwd=folder)
        process.send_signal(signal.SIGTERM)
    finally:
        told["ended"] = _end(process)
    return told


def _begun(folder):
    """A task of the sweep that has saved something, and whose turn began less than a second ago. 'two' stays as it is:
    it is what cannot be resumed."""
    rows = standing(folder)
    running = [name for name in _running(folder) if name in ("one", "three")]
    return next((name for name in running if time.time() - rows[name]["start_seconds"] < 1), None)


def _running(folder):
    """The names of the tasks that run and have saved something."""
    return [n for n, row in standing(folder).items() if row["status"] == "running" and saved(folder, n)]


def _failed(folder, name):
    row = standing(folder).get(name, {})
    return row if row.get("status") == "failed" else None


def _stopped(told, name):
    return events(told["folder"], name, "stopped")


def _over(port, request):
    with socket.create_connection(("127.0.0.1", port), timeout=300) as channel:
        channel.sendall(json.dumps(request).encode() + b"\n")
        return json.loads(channel.makefile().readline())


def _end(process):
    if process.poll() is None and process.returncode is None:
        deadline = time.monotonic() + 300
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        process.kill()
    return end(process)


BAD = [
    (("submit", "sweep.py"), "a task must have a name of its own; 'one' is "),
    (("submit", "nowhere.py"), "nowhere.py must be a Python file; it is not there"),
    (("submit", "sweep.py:halved"), "cannot be halved; 'sweep:halved' is to be. Use 'dovetail run'"),
    (("submit", "sweep.py:held"), "which only the submitting process holds. Put it at the top level of a file."),
    (("submit", "programs.py:line", "sloep=1", "--steps", "9"), "not 'sloep'. Did you mean 'slope'?"),
    (("submit", "programs.py:line", "slope=1"), "parameters and --name must go with a program"),
    (("submit", "programs.py:line", "slope", "--steps", "9"), "as in learning_rate=0.1, got 'slope'."),
    (("submit", "programs.py:line", "--steps", "0"), "steps must be a whole number of at least 1, got 0."),
    (("submit", "programs.py:line", "--steps", "9", "--priority", "-1"), "a priority must be a number greater than 0"),
    (("submit", "programs.py:line", "--steps", "9", "--deadline", "1999-01-01"), "a deadline must lie ahead"),
    (("submit", "programs.py:line", "--steps", "9", "--deadline", "soon"), "a deadline must be a time from now such"),
    (("pause", "oen"), "got 'oen'. Did you mean 'one'?"),
    (("resume", "two"), "a task to resume must be paused, failed or cancelled; 'two' is "),
    (("cancel", "short"), "a task to cancel must not have ended; 'short' is finished at step 40"),
    (("priority", "one", "0"), "a priority must be a number greater than 0 (1 is usual, 2 counts twice), got 0.0."),
    (("deadline", "one", "soon"), "a deadline must be a time from now such as 2h"),
    (("deadline", "short", "2h"), "a task to have a deadline must not have ended; 'short' is finished at step 40"),
    (("clone", "one", "sloep=1", "--fresh"), "it takes ['slope', 'learning_rate', 'pause'], not 'sloep'. Did you mean"),
    (("clone", "one"), "a clone must be told how to begin: --warm, with the other's weights, or --fresh."),
]


@pytest.mark.process
@pytest.mark.timeout(300)
class TestADaemon:
    def test_only_its_user_can_reach_it(self, told):
        assert told["modes"] == [0o700, 0o600]
        assert not told["socket"].parent.exists()  # though it was killed: the next one cleared up

    def test_a_workload_and_a_program_can_be_submitted(self, told):
        assert told["submit"].out == "3 tasks submitted\n"
        assert told["restarted"]["short"]["status"] == "finished"
        assert told["restarted"]["short"]["parameters"] == {"slope": 2}
        assert told["restarted"]["short"]["entity"] == "vision"
        with Store(told["folder"] / HOME) as store:
            assert {workload for workload, _ in store.tasks()} == {
                "sweep",
                "sweep, cloned",
                "programs:line",
                "programs:broken",
            }

    def test_a_list_says_where_things_stand_and_why(self, told):
        rows = {row["task"]: row for row in told["list", "--json"].json()}
        assert list(rows) == ["one", "two", "three"]
        for name, row in rows.items():
            assert name in told["list",].out
            assert row["priority"] == 2
            assert row["why"]
            assert row["status"] in ("running", "pending")
            assert row["status"] == "pending" or row["start_seconds"] < row["end_seconds"]

    def test_all_have_turns_and_who_leaves_is_saved_first(self, told):
        reasons = {event.reason for name in ("one", "two", "three") for event in _stopped(told, name)}
        assert "its turn is over" in reasons
        for name in ("one", "two", "three"):
            starts = [step for step, _ in spans(told["folder"], name)]
            assert starts == sorted(starts)
            stops = [event.step for event in _stopped(told, name)]
            assert all(step in (0, *saved(told["folder"], name)) for step in stops)

    def test_a_paused_task_is_saved_and_stays_paused_over_a_restart(self, told):
        name = told["paused"]
        assert told["pause", name].out == f"{name} is paused once it is saved\n"
        assert told["restarted"][name]["status"] == "paused"
        assert told["resume", name].code == 0
        (paused,) = events(told["folder"], name, "paused")
        (resumed,) = events(told["folder"], name, "resumed")
        begun = events(told["folder"], name, "started")
        assert not [event for event in begun if paused.at_seconds < event.at_seconds < resumed.at_seconds]
        after = [event.step for event in begun if event.at_seconds > resumed.at_seconds]
        assert after[0] == told["killed at"][name] > 0

    def test_a_warm_clone_begins_with_the_weights_and_a_step_count_of_its_own(self, told):
        with Store(told["folder"] / HOME) as store:
            (warm,) = [task for _, task in store.tasks() if task.name == "warm"]
            (fresh,) = [task for _, task in store.tasks() if task.name == "fresh"]
        (submitted,) = events(told["folder"], "warm", "submitted")
        step = submitted.step
        assert told["clone", told["paused"], "learning_rate=0.5", "--warm", "--name", "warm"].out == (
            f"warm begins with the weights of step {step} of {told['paused']}\n"
        )
        assert dict(warm.parameters) == {"pause": 0.005, "learning_rate": 0.5}
        assert step in saved(told["folder"], told["paused"])
        kept = told["folder"] / HOME / "checkpoints" / warm.identity / "begin" / "index.json"
        assert json.loads(kept.read_text())["sha256"].startswith(warm.begins_with)
        assert spans(told["folder"], "warm")[0] == (0, 1_000_000)
        assert fresh.begins_with == ""
        assert dict(fresh.parameters) == {"pause": 0.005, "slope": 5}

    def test_a_program_that_cannot_be_built_fails_alone_and_edited_it_can_be_submitted_again(self, told):
        assert "the data is not here" in told["broken"]["why"]
        assert told["mended"].out == "1 task submitted\n"
        assert told["restarted"]["broken"]["status"] == "finished"

    @pytest.mark.parametrize(("words", "because"), BAD)
    def test_what_cannot_be_is_refused_with_the_reason(self, told, words, because):
        found = told["bad"][words]
        assert found.code == 2, (found, told["restarted"])
        assert because in found.err
        assert found.err.count("\n") == 1

    def test_several_are_asked_of_at_once_and_who_refuses_keeps_nobody_from_it(self, told):
        found = told["several"]
        assert found.code == 2
        assert "a task to cancel must not have ended; 'short' is finished" in found.err
        assert found.out.count("is cancelled") == len({"two", "three"} - {told["paused"]})

    def test_killed_it_takes_its_workers_along_and_the_next_goes_on(self, told):
        assert not any(worker.is_running() and worker.status() != "zombie" for worker in told["workers"])
        assert "none is. Start one: dovetail daemon, or dovetail run." in told["none"].err
        for name in ("one", "two", "three", "warm"):
            after = [step for step, _ in spans(told["folder"], name) if step > told["killed at"][name]]
            assert after == sorted(after)
            assert told["restarted"][name]["step"] >= told["killed at"][name]

    def test_over_loopback_the_token_is_needed(self, told):
        assert told["note"]["token"]
        assert "must begin with the token" in told["refused"]["error"]
        assert told["restarted"]

    def test_a_second_one_is_refused(self, told):
        found = told["second"]
        assert found.code == 3
        assert f"is held by process {told['note']['process']}." in found.err

    def test_asked_to_stop_it_saves_everything(self, told):
        assert told["ended"].code == 0
        for name in ("warm", told["paused"]):
            stopped = _stopped(told, name)
            assert not stopped or stopped[-1].step in (0, *saved(told["folder"], name))


PACKAGED = """
import torch
import dovetail as dt

from ..settings import SLOPE


def line(learning_rate=0.1):
    model = torch.nn.Linear(1, 1, bias=False)
    return dt.Training(
        model=model,
        batches=[torch.ones(4, 1)],
        loss=lambda model, batch: (model(batch) - SLOPE * batch).square().mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
    )
"""
PACKAGED_SWEEP = """
import dovetail as dt
from .parts.model import line

workload = dt.grid(line, learning_rate=[0.1, 0.2], steps=3)
"""


def _write_project(folder: Path, *, slope: float) -> Path:
    """A project whose package, under `src`, has programs; gives a folder in it that is none of its packages'."""
    files = {
        "pyproject.toml": "",
        "src/packaged/__init__.py": "",
        "src/packaged/settings.py": f"SLOPE = {slope}",
        "src/packaged/sweep.py": PACKAGED_SWEEP,
        "src/packaged/parts/__init__.py": "",
        "src/packaged/parts/model.py": PACKAGED,
        "notes/readme.txt": "",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder / "notes"


@pytest.mark.process
@pytest.mark.timeout(300)
def test_packages_of_projects_are_trained_by_a_daemon_that_is_elsewhere(tmp_path):
    """Also where two projects have packages of one name, and by clones of their tasks."""
    there, store = tmp_path / "elsewhere", tmp_path / "elsewhere" / HOME
    there.mkdir()
    process = begin("daemon", cwd=there)
    try:
        until(lambda: holder(store), what="a daemon")
        for name, slope in (("one", 3.0), ("two", 7.0)):
            notes = _write_project(tmp_path / name, slope=slope)
            words = ("packaged.parts.model:line", "learning_rate=0.5", "--steps", "3", "--name", name)
            found = dovetail("submit", *words, "--store", store, cwd=notes)
            assert found.code == 0, found.err
        assert dovetail("submit", "packaged.sweep", "--store", store, cwd=tmp_path / "two").code == 0
        refused = in_process("clone", "one", "rate=1", "--fresh", cwd=there)
        assert in_process("clone", "one", "--fresh", "--name", "three", cwd=there).code == 0
        until(lambda: {row["status"] for row in standing(there).values()} == {"finished"}, what="the end of all")
    finally:
        process.send_signal(signal.SIGTERM)
        assert _end(process).code == 0
    assert "it takes ['learning_rate'], not 'rate'." in refused.err
    weights = {task.name: task.model().weight.item() for task in open_result(store).tasks}
    swept = ("line learning_rate=0.1", "line learning_rate=0.2")
    assert weights == pytest.approx({"one": 3.0, "two": 7.0, "three": 3.0, **dict.fromkeys(swept, 7.0)})


@pytest.mark.parametrize(
    ("words", "because"),
    [
        (("--policy", "max_min_fairnes"), "got 'max_min_fairnes'; did you mean 'max_min_fairness'?"),
        (("--round", "soon"), "--round: a time must be a number with units such as"),
        (("--round", "0s"), "a round must last longer than 0 s, got 0.0."),
        (("--objective", "fast"), "objective must be one of"),
        (("--save-seconds", "0"), "saving must happen after a positive time"),
        (("--port", "99999"), "port 99999 must be free on loopback; found: "),
        (("--store", "/dev/null/store"), "the store's directory /dev/null/store must be writable"),
    ],
)
def test_a_daemon_that_cannot_be_is_refused(tmp_path, words, because):
    found = in_process("daemon", *words, cwd=tmp_path)
    assert found.code == 2
    assert because in found.err


@pytest.mark.parametrize("words", [("list",), ("pause", "a"), ("submit", "sweep.py"), ("clone", "a", "--warm")])
def test_without_a_daemon_it_is_said_how_to_start_one(tmp_path, words):
    write(tmp_path, programs=PROGRAMS, sweep=SWEEP)
    found = in_process(*words, cwd=tmp_path)
    assert found.code == 2
    assert found.err == (
        "dovetail: a controller must be running on .dovetail to take commands; none is. "
        "Start one: dovetail daemon, or dovetail run.\n"
    )
