"""Bad input gets a clear answer, and nothing is lost: each row runs the real command and reads what it says."""

import ctypes
import os
import re
import sqlite3
from pathlib import Path

import pytest

from dovetail.store import ControllerLock, Point, Store
from dovetail.vocabulary import Program, Stop, Task
from tests.cli.processes import HOME, dovetail, events, in_process, rows, spans, write

PROGRAMS = """
import os
import resource
from pathlib import Path

import torch
from torch import nn

import dovetail as dt


def square(model, batch):
    return model(batch).square().mean()


def training(*, loss=square, batches=None, width=4, **more):
    model = nn.Linear(4, width)
    return dt.Training(
        model=model,
        batches=[torch.ones(2, 4), torch.zeros(2, 4)] if batches is None else batches,
        loss=loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        evaluate=lambda model: {"weight": model.weight.sum().item()},
        **more,
    )


def good(width=4):
    return training(width=width)


def raises():
    raise RuntimeError("[/INST] is [bold]no[/bold] token")  # which is markup, or nearly so, to a terminal library


def gives_a_model():
    return nn.Linear(2, 2)


def turns_nan():
    def loss(model, batch):
        loss.calls += 1
        return square(model, batch) * (float("nan") if loss.calls >= 7 else 1.0)

    loss.calls = 0
    return training(loss=loss)


def rejects():
    return training(batches=[torch.ones(2, 5)])


def runs_out():
    return training(batches=(torch.ones(2, 4) for _ in range(3)))


class Endless:
    def __iter__(self):
        while True:
            yield torch.ones(2, 4)


def endless():
    return training(batches=Endless())


def saved(step, task=""):
    for path in Path(".dovetail/checkpoints").glob(f"*/step-{step:09d}*/index.json"):
        try:
            if f'"task\\\\":\\\\"{task}' in path.read_text():
                return True
        except OSError:  # another task's, that is just removed
            pass
    return False


class Fickle:
    # Other batches in each process.
    def __init__(self):
        self.batch = torch.tensor(list(os.urandom(8)), dtype=torch.float32).reshape(2, 4) / 256

    def __iter__(self):
        while True:
            yield self.batch


def fickle():
    def loss(model, batch):
        # A trial saves elsewhere.
        if saved(60, "fickle") and not Path("died").exists():
            Path("died").touch()
            os._exit(9)
        return square(model, batch)

    return training(loss=loss, batches=Fickle())


def fills_the_disk():
    def loss(model, batch):
        if saved(100):  # no other task goes so far
            # The disk of this process is full from here on: what it writes may have a megabyte and no more.
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
        return square(model, batch)

    return training(loss=loss, width=100_000)
"""

UNGUARDED = """
import dovetail as dt
from programs import good


def program():
    return good()


dt.run(dt.grid(program, steps=3))
"""

SWEEP = """
import dovetail as dt


def task(name, program=None, **more):
    if "epochs" not in more:
        more.setdefault("steps", 20)
    return dt.task(f"programs.py:{program or name}", name=name, **more)


workload = dt.workload(
    [
        task("good one", "good"),
        task("no_such_function"),
        task("raises"),
        task("gives_a_model"),
        task("turns_nan"),
        task("rejects"),
        task("runs_out"),
        task("misspelled", "good", widht=8),
        task("never reported", "good", metric="accuracy", at_least=0.9),
        task("endless epochs", "endless", epochs=2),
        task("fickle", steps=75),
        task("fills_the_disk", steps=115),
        dt.task("missing_module.py:program", name="missing_module", steps=5),
        dt.task("unguarded.py:program", name="unguarded", steps=5),
        task("good two", "good", epochs=10, width=5),
    ],
    name="bad",
)
"""


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """One run of good tasks among broken ones: the folder, what the command said, and where tasks stand."""
    folder = write(
        tmp_path_factory.mktemp("broken"),
        programs=PROGRAMS,
        unguarded=UNGUARDED,
        missing_module="import no_such_module",
        sweep=SWEEP,
    )
    finished = dovetail("run", "sweep.py", "--save-steps", "5", "--keep", "3", cwd=folder)
    return folder, finished, rows(folder)


FAILURES = {
    "no_such_function": r"task 'no_such_function': .*programs\.py must define a function 'no_such_function'",
    "raises": r"task 'raises': its program must build a Training; it raised RuntimeError: \[/INST\] is \[bold\]no",
    "gives_a_model": r"task 'gives_a_model': its program must return a dovetail\.Training, got Linear\.",
    "turns_nan": r"the loss must be a finite number; it was nan at step 7, the first such step\. "
    r"Lower the learning rate.*The last checkpoint, at step 5, is kept",
    "rejects": r"the model must accept every batch; step 1 .* raised RuntimeError: .*\(2x5 and 4x4\).* "
    r"The batch was float32\[2, 5\]\.",
    "runs_out": r"batches must give at least 1 each time they are iterated; epoch 1 gave 0\. .*use a list",
    "misspelled": r"program 'good' must take every parameter; it takes \['width'\], not 'widht'\. "
    r"Did you mean 'width'\?",
    "never reported": r"evaluation must report the metric 'accuracy' .*; it reports \[.*'weight'.*\]\. "
    r"Add it to what evaluate gives, or change the target\.",
    "endless epochs": r"stopping by epochs must go with batches that have a length; these have none\. "
    r"Give them __len__, or stop by steps\.",
    "fickle": r"batches must repeat themselves when they are iterated again; epoch 0 did not: .* "
    r"Seed their order from the task's seed, or give them state_dict and load_state_dict\.",
    "fills_the_disk": r"the disk must have room to save task 'fills_the_disk' at step 115: about 1\.9 MiB at .*"
    r"Free some space, or put the store on a larger disk\. Earlier checkpoints are untouched\.",
    "missing_module": r"missing_module\.py must be importable; importing it raised ModuleNotFoundError: "
    r"No module named 'no_such_module'",
    "unguarded": r"a program's file must not run a workload when it is imported; .*"
    r"Put the call to dt\.run under: if __name__ == '__main__':",
}


@pytest.mark.process
class TestOneWorkload:
    """Thirteen tasks that are broken in thirteen ways, and two that are not."""

    @pytest.mark.parametrize("name", FAILURES)
    def test_each_failure_says_what_must_hold_what_was_found_and_what_to_do(self, broken, name):
        _, _, found = broken
        assert found[name]["status"] == "failed"
        assert re.search(FAILURES[name], found[name]["reason"]), found[name]["reason"]

    @pytest.mark.parametrize("name", ["good one", "good two"])
    def test_the_others_finish(self, broken, name):
        folder, _, found = broken
        assert (found[name]["status"], found[name]["step"]) == ("finished", 20)
        assert spans(folder, name) == [(0, 20)]

    def test_the_exit_code_says_that_some_failed(self, broken):
        assert broken[1].code == 1

    @pytest.mark.parametrize("name", FAILURES)
    def test_reasons_stand_in_what_the_command_wrote(self, broken, name):
        _, finished, found = broken
        assert found[name]["reason"] in finished.err, "as it happens"
        assert found[name]["reason"] in finished.out, "in the table at the end"

    def test_a_failure_keeps_the_users_own_traceback(self, broken):
        (failed,) = events(broken[0], "raises", "failed")
        assert 'raise RuntimeError("[/INST]' in failed.log

    def test_what_was_saved_before_a_failure_is_kept(self, broken):
        folder = broken[0]
        assert [event.step for event in events(folder, "turns_nan", "saved")] == [5]
        paths = [Path(event.path) for event in events(folder, "fills_the_disk", "saved")]
        assert [path.is_dir() for path in paths[-3:]] == [True, True, True]

    def test_a_save_that_fails_on_the_way_is_a_warning_and_training_goes_on(self, broken):
        warned = [event.message for event in events(broken[0], "fills_the_disk", "warned")]
        assert [re.search(r"at step (\d+)", message).group(1) for message in warned] == ["105", "110"]
        assert all("the disk must have room" in message for message in warned)
        assert not list((broken[0] / HOME / "checkpoints").glob("*/.writing-*"))

    def test_the_worker_that_died_was_replaced_and_its_task_tried_again(self, broken):
        (lost,) = events(broken[0], "fickle", "lost")
        assert re.search(r"worker process \d+ on n0:\d+ exited with code 9", lost.reason)
        assert [event.attempt for event in events(broken[0], "fickle", "started")] == [1, 2]

    def test_the_table_shows_the_step_that_is_saved(self, broken):
        assert broken[2]["turns_nan"]["step"] == 5


# Damaged checkpoints

STEADY = """
import dovetail as dt

STEPS = 40
workload = dt.workload(
    [dt.task("programs.py:good", name=name, steps=STEPS) for name in ("truncated", "tampered", "whole", "hopeless")],
    name="damaged",
)
"""


def truncate(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def tamper(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """A workload run to its end, its checkpoints damaged, and run again for more steps."""
    folder = write(tmp_path_factory.mktemp("damaged"), programs=PROGRAMS, sweep=STEADY)
    arguments = ("run", "sweep.py", "--save-steps", "10", "--keep", "2", "--exact")
    assert dovetail(*arguments, cwd=folder).code == 0
    for name, damage, steps in (
        ("truncated", truncate, (40,)),
        ("tampered", tamper, (40,)),
        ("hopeless", tamper, (30, 40)),
    ):
        for event in events(folder, name, "saved"):
            if event.step in steps:
                damage(Path(event.path, "piece-00000.safetensors"))
    write(folder, sweep=STEADY.replace("STEPS = 40", "STEPS = 60"))
    return folder, dovetail(*arguments, cwd=folder)


@pytest.mark.process
class TestDamagedCheckpoints:
    @pytest.mark.parametrize(
        ("name", "reasons"),
        [
            ("truncated", [r"piece-00000\.safetensors must have \d+ bytes; it has \d+\. It is truncated\."]),
            ("tampered", [r"piece-00000\.safetensors must match its checksum; its bytes were altered\."]),
            ("hopeless", [r"step-000000040.* were altered", r"step-000000030.* were altered"]),
            ("whole", []),
        ],
    )
    def test_what_is_damaged_is_passed_over_and_said_so(self, damaged, name, reasons):
        found = [event.reason for event in events(damaged[0], name, "fell_back")]
        assert len(found) == len(reasons)
        for reason, expected in zip(found, reasons, strict=True):
            assert re.search(expected, reason)

    @pytest.mark.parametrize(
        ("name", "went_on_at"), [("truncated", 30), ("tampered", 30), ("whole", 40), ("hopeless", 0)]
    )
    def test_it_goes_on_from_the_one_before_and_finishes(self, damaged, name, went_on_at):
        folder, finished = damaged
        assert finished.code == 0
        assert rows(folder)[name]["step"] == 60
        again = [event.step for event in events(folder, name, "saved") if event.attempt == 2]
        assert again == list(range(went_on_at + 10, 61, 10))

    def test_damage_changes_nothing_of_what_is_learned(self, damaged):
        weights = {name: row["metrics"]["weight"] for name, row in rows(damaged[0]).items()}
        assert len(set(weights.values())) == 1

    def test_the_command_says_so_too(self, damaged):
        folder, finished = damaged
        for output in (finished.out, dovetail("show", cwd=folder).out):
            assert "a damaged checkpoint was set aside, the one before was used" in output
            assert "It is truncated" in output


# What is refused before anything starts

GOOD = 'dt.task("programs.py:good", name="a", steps=5)'
REFUSED = [
    ("an empty grid", 'workload = dt.grid("programs.py:good", width=[], steps=5)', "'width' has none"),
    (
        "duplicate names",
        f"workload = dt.workload([{GOOD}, {GOOD}])",
        "tasks of a workload must have names of their own; 'a' is there more than once. Rename or drop the copies.",
    ),
    ("no tasks", "workload = dt.workload([])", "must have at least one task; it has none"),
    (
        "zero steps",
        'workload = dt.grid("programs.py:good", steps=0)',
        "steps must be a whole number of at least 1, got 0",
    ),
    (
        "negative steps",
        'workload = dt.grid("programs.py:good", steps=-5)',
        "steps must be a whole number of at least 1, got -5",
    ),
    (
        "half a step",
        'workload = dt.grid("programs.py:good", steps=0.5)',
        "steps must be a whole number of at least 1, got 0.5",
    ),
    (
        "no end",
        'workload = dt.grid("programs.py:good")',
        "a task must stop after a number of steps or of epochs, one of the two, got steps=None and epochs=None",
    ),
    (
        "a target without a metric",
        'workload = dt.grid("programs.py:good", steps=5, at_least=0.9)',
        "a target must be a metric with either at_least or at_most, or with patience, got metric=None, at_least=0.9",
    ),
    (
        "a parameter that a function does not take",
        "def program(width=4): ...\nworkload = dt.grid(program, widht=[1, 2], steps=5)",
        "program 'program' must take every parameter; it takes ['width'], not 'widht'. Did you mean 'width'?",
    ),
    (
        "a parameter that is not plain data",
        'workload = dt.grid("programs.py:good", width=[object()], steps=5)',
        "must be numbers, text, or lists and dicts of these; 'width' is of type object",
    ),
    (
        "a program file that is not there",
        'workload = dt.grid("nowhere.py:good", steps=5)',
        "a program's file must exist;",
    ),
    (
        "a program module that is not there",
        'workload = dt.grid("no_such_package.module:good", steps=5)',
        "a program's module must be importable; 'no_such_package.module' was not found on the path",
    ),
    (
        "a program with a syntax error",
        'workload = dt.grid("unreadable.py:good", steps=5)',
        "unreadable.py and what it imports must be valid Python; found: '(' was never closed",
    ),
    ("a reference without a function", 'workload = dt.grid("programs.py", steps=5)', "'file.py:function'"),
    (
        "a file that raises",
        "raise RuntimeError('[/no]')",
        "sweep.py must be importable; importing it raised RuntimeError: [/no]",
    ),
    ("a file with a syntax error", "def broken(:", "sweep.py must be importable; importing it raised SyntaxError"),
    (
        "no workload",
        "other = 3",
        "sweep.py must define a workload named 'workload' or a search named 'search'; found NoneType. Make one with",
    ),
    (
        "a search for what the program does not take",
        'search = dt.Search("programs.py:good", {"widht": [1, 2]}, metric="loss", steps=5)',
        "program 'good' must take every parameter; it takes ['width'], not 'widht'. Did you mean 'width'?",
    ),
    (
        "a search of no trials",
        'search = dt.Search("programs.py:good", {"width": [1, 2]}, metric="loss", steps=5, count=0)',
        "a search must have count of at least 1, got 0.",
    ),
    (
        "a workload of another name",
        f"mine = dt.workload([{GOOD}])",
        "It has ['mine']: name one as sweep.py:mine.",
    ),
    (
        "something else",
        "workload = [1, 2]",
        "must define a workload named 'workload' or a search named 'search'; found list",
    ),
    (
        "halving that keeps everybody",
        'workload = dt.grid("programs.py:good", steps=5, halving=dt.Halving(metric="a", first_steps=1, factor=1))',
        "halving must have first_steps of at least 1, a factor of at least 2",
    ),
]


@pytest.mark.parametrize(("text", "message"), [pytest.param(*row[1:], id=row[0]) for row in REFUSED])
def test_a_workload_that_cannot_be_is_refused_before_anything_starts(tmp_path, text, message):
    write(tmp_path, sweep=f"import dovetail as dt\n{text}\n", programs="def good(width=1): ...", unreadable="f(")
    found = dovetail("run", "sweep.py", cwd=tmp_path)
    assert found.code == 2
    assert message in found.err
    assert found.err.startswith("dovetail: ")
    assert len(found.err.splitlines()) == 1, "one line, no traceback"
    assert not (tmp_path / HOME).exists()


def test_a_workload_function_that_raises_is_answered_in_one_line(tmp_path):
    write(tmp_path, sweep="def workload():\n    raise RuntimeError('no data')")
    found = dovetail("run", "sweep.py", cwd=tmp_path)
    assert found.code == 2
    assert "no data" in found.err
    assert len(found.err.splitlines()) == 1


ONE = f"import dovetail as dt\nworkload = dt.workload([{GOOD}])\n"
COMMANDS = [
    (("run", "nowhere.py"), 2, "nowhere.py must be a Python file; it is not there."),
    (("run", "."), 2, ". must be a Python file"),
    (
        ("run", "sweep.py:mine"),
        2,
        "sweep.py must define a workload or a search named 'mine'; found NoneType. It has ['workload']",
    ),
    (
        ("run", "sweep.py", "--keep-bytes", "lots"),
        2,
        "--keep-bytes: bytes must be a number with a unit such as '8 GiB'",
    ),
    (
        ("run", "sweep.py", "--save-seconds", "0"),
        2,
        "saving must happen after a positive time or number of steps, got 0.0",
    ),
    (("run", "sweep.py", "--keep", "0"), 2, "keep at least 1 checkpoint"),
    (("run", "sweep.py", "--store", "sweep.py"), 2, "the store's directory sweep.py must be writable; found: "),
    (("plan", "nowhere.py"), 2, "nowhere.py must be a Python file"),
    (("profile", "nowhere.py"), 2, "nowhere.py must be a Python file"),
    (("show",), 2, "there must be a store at .dovetail; found none. Run something first, or use --store."),
    (("report",), 2, "there must be a store at .dovetail; found none."),
    (("export", "a"), 2, "there must be a store at .dovetail; found none."),
    (("export",), 2, "export must be told which task: its name, or --best METRIC, one of the two."),
    (("export", "a", "--best", "accuracy"), 2, "one of the two."),
    (("export", "--best", "accuracy", "--goal", "most"), 2, "--goal must be max or min, got 'most'."),
    (
        ("stop",),
        2,
        "a controller must be running on .dovetail to take commands; none is. Start one: dovetail daemon",
    ),
    (("cancel", "a"), 2, "a controller must be running on .dovetail to take commands; none is."),
    (("export", "b", "--store", "filled"), 2, "the task must be one of ['a'], got 'b'."),
    (("export", "a", "--store", "filled"), 2, "task 'a' must have a checkpoint to export; there is none in "),
    (("export", "--best", "acuracy", "--store", "filled"), 2, "some task must have reported 'acuracy'"),
    (("stop", "--store", "filled"), 2, "a controller must be running on filled"),
    (
        ("run", "sweep.py", "--store", "newer"),
        2,
        "must be of version 4 or older; it is of version 99, written by a newer",
    ),
    (("show", "--store", "newer"), 2, "Upgrade Dovetail, or use another store (--store)."),
    (
        ("show", "--store", "garbled"),
        2,
        "the store at garbled must be as it was written; found: file is not a database",
    ),
    (("run", "sweep.py", "--store", "garbled"), 2, "No whole copy of it is beside it: bring one from a backup"),
]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with a workload and three stores: with a task that never ran, from a newer version, and garbled."""
    folder = write(tmp_path_factory.mktemp("prepared"), sweep=ONE, programs="def good(width=1): ...")
    task = Task(name="a", program=Program(reference="programs.py:good"), stop=Stop(steps=5))
    with Store(folder / "filled", write=True) as store:
        point = Point(task=task.identity, name="accuracy", step=1, value=0.5, at_seconds=0.0)
        store.add(tasks=[("workload", task)], points=[point])
    Store(folder / "newer", write=True).close()
    connection = sqlite3.connect(folder / "newer" / "store.sqlite")
    connection.execute("PRAGMA user_version=99")
    connection.close()
    (folder / "garbled").mkdir()
    (folder / "garbled" / "store.sqlite").write_text("this is no database" * 100)
    return folder


@pytest.mark.parametrize(
    ("arguments", "code", "message"), COMMANDS, ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_a_command_that_cannot_be_carried_out_says_why(prepared, arguments, code, message):
    found = (dovetail if arguments[0] == "run" else in_process)(*arguments, cwd=prepared)
    assert (found.code, found.out) == (code, "")
    assert message in found.err
    assert "Traceback" not in found.err


def test_a_second_controller_is_refused_naming_the_first(prepared):
    with ControllerLock(prepared / "filled"):
        found = dovetail("run", "sweep.py", "--store", "filled", cwd=prepared)
    assert found.code == 3
    assert f"a store must have one controller at a time; filled is held by process {os.getpid()}." in found.err
    assert "Wait for it, stop it with 'dovetail stop', or use another store (--store)." in found.err


def without_override() -> None:
    """Let file modes count for root too; for others nothing changes."""
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("locked/inner", "the store's directory locked/inner must be writable; found: [Errno 13] Permission denied"),
        ("locked", "the store's directory locked must be writable; found: [Errno 13] Permission denied"),
    ],
)
def test_a_directory_without_permission_is_named(tmp_path, store, message):
    write(tmp_path, sweep=ONE, programs="def good(width=1): ...")
    (tmp_path / "locked").mkdir(mode=0o555)
    found = dovetail("run", "sweep.py", "--store", store, cwd=tmp_path, preexec_fn=without_override)
    assert found.code == 2
    assert message in found.err
    assert "Use --store." in found.err
    assert "Traceback" not in found.err


def tiny_disk() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 10, 8 << 10))


def test_a_disk_too_full_for_the_store_itself_is_said_in_one_line(tmp_path):
    write(tmp_path, sweep=ONE, programs="def good(width=1): ...")
    found = dovetail("run", "sweep.py", cwd=tmp_path, preexec_fn=tiny_disk)
    assert found.code == 2
    assert re.search(r"Check its permissions and its disk \(.* are free\), or use --store\.", found.err)
    assert len(found.err.splitlines()) == 1
