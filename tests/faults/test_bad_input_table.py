"""Bad input, one table: what is given, and what the answer must say. Commands run as they do in a terminal, in this
process; calls are those that a program makes. Every answer says what must hold and what was found."""

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import dovetail as dt
from dovetail.cli.app import app
from dovetail.control import Settings, open_result
from dovetail.describe import carried, load_workload
from dovetail.planning.options.kinds import parse_cluster
from dovetail.store import ControllerLock, Point, Store, check_fence, raise_fence, write_atomically
from dovetail.testing import programs
from dovetail.train import RESIDENT, SessionMember, TrainingState, checkpoint
from dovetail.train.build import build
from dovetail.vocabulary import (
    Cluster,
    Device,
    DovetailError,
    Kind,
    Node,
    Objective,
    Option,
    Profile,
    Program,
    Stop,
    Task,
    loads,
    read_event,
)
from dovetail.vocabulary.units import parse_bytes, parse_seconds

PROGRAM = "programs.py:good"
SWEEP = f'import dovetail as dt\nworkload = dt.workload([dt.task("{PROGRAM}", name="a", steps=5)])\n'
CPU = Kind(name="cpu", processor="cpu")


def task(**more: object) -> Task:
    return dt.task(PROGRAM, **({"name": "a", "steps": 5} | more))


def of(reference: str) -> Task:
    return dt.task(reference, name="a", steps=1)


def command(*words: str, sweep: str = SWEEP) -> Callable[[], str]:
    def call() -> str:
        Path("sweep.py").write_text(sweep)
        found = CliRunner().invoke(app, words)
        assert found.exit_code in (2, 3), found.output
        assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
        return found.output

    return call


def workload(text: str) -> Callable[[], str]:
    return command("run", "sweep.py", sweep=f"import dovetail as dt\n{text}\n")


def stepped(program: Callable[[], dt.Training]) -> None:
    """One step of a training, alone on this machine."""
    members = [SessionMember(training=program(), seed=0)]
    with contextlib.closing(RESIDENT.open(members, device=torch.device("cpu"), threads=1, knobs={})) as session:
        session.advance()


def training(**more: object) -> dt.Training:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"batches": [torch.ones(2, 4)], "loss": lambda model, batch: model(batch).mean(), "optimizer": optimizer}
    return dt.Training(model=model, **(given | more))


def damaged(name: str, change: Callable[[bytes], bytes]) -> Callable[[], object]:
    def call() -> object:
        state = TrainingState(step=5, tensors={"w": torch.ones(9)}, values={"progress": {}})
        path, _ = checkpoint.write(Path("t"), state, task="t", attempt=1)
        (path / name).write_bytes(change((path / name).read_bytes()))
        return checkpoint.read(path)

    return call


def reformatted(content: bytes) -> bytes:
    import hashlib

    index = json.loads(json.loads(content)["index"]) | {"format": 99}
    body = json.dumps(index)
    return json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest(), "index": body}).encode()


def stale() -> None:
    raise_fence(Path("t"), 3)
    check_fence(Path("t"), 2)


def altered_fence() -> None:
    raise_fence(Path("t"), 3)
    Path("t/attempt").write_text("4")
    check_fence(Path("t"), 4)


def altered_row() -> None:
    with Store(Path("s"), write=True) as store:
        store.add(events=[read_event("warned", at_seconds=0.0, data={"message": "a"})])
    with contextlib.closing(sqlite3.connect("s/store.sqlite")) as database, database:
        database.execute("UPDATE events SET attempt = 7")
    with Store(Path("s")) as store:
        list(store.events())


def newer_store() -> None:
    Store(Path("s"), write=True).close()
    with contextlib.closing(sqlite3.connect("s/store.sqlite")) as database:
        database.execute("PRAGMA user_version=99")
    Store(Path("s"), write=True)


def held() -> None:
    with ControllerLock(Path()), ControllerLock(Path()):
        pass


def locked() -> None:
    """Somebody else holds the database's own lock for longer than one waits."""
    import dovetail.store.database as database

    with Store(Path("s"), write=True) as store, contextlib.closing(sqlite3.connect("s/store.sqlite")) as other:
        other.execute("BEGIN IMMEDIATE")
        store._connection.execute(f"PRAGMA busy_timeout={int(database.LOCKED_SECONDS)}")  # milliseconds here
        store.add(events=[read_event("warned", at_seconds=0.0, data={"message": "a"})])


def foreign_pickle() -> None:
    carried.carry("theirs", lambda: 1)
    carried.deposit(Path(), write=write_atomically)
    path = Path("programs/theirs.pickle")
    path.write_bytes(bytes(32) + path.read_bytes()[32:])
    carried.fetch(Path(), "theirs")


def open_key() -> None:
    carried.carry("open", lambda: 1)
    carried.deposit(Path(), write=write_atomically)
    carried.key_path().chmod(0o644)
    carried.fetch(Path(), "open")


def short_key() -> None:
    carried.key_path().parent.mkdir(parents=True)
    carried.key_path().touch(mode=0o600)
    carried.carry("short", lambda: 1)
    carried.deposit(Path(), write=write_atomically)


def best_of_nothing() -> None:
    with Store(Path("s"), write=True) as store:
        one = task()
        store.add(tasks=[("w", one)], points=[Point(task=one.identity, name="loss", step=1, value=1.0, at_seconds=0.0)])
    open_result(Path("s")).best("accuracy")


ROWS: list[tuple[str, Callable[[], object], str]] = [
    # Workloads
    ("an empty grid", workload(f'workload = dt.grid("{PROGRAM}", width=[], steps=5)'), "'width' has none"),
    ("an empty workload", workload("workload = dt.workload([])"), "must have at least one task; it has none"),
    (
        "two of one name",
        workload(f'one = dt.task("{PROGRAM}", name="a", steps=5)\nworkload = dt.workload([one, one])'),
        "'a' is there more than once. Rename or drop the copies.",
    ),
    ("no steps", workload(f'workload = dt.grid("{PROGRAM}", steps=0)'), "steps must be a whole number of at least 1"),
    ("true steps", lambda: task(steps=True), "steps must be a whole number of at least 1, got True"),
    ("epochs in words", lambda: task(steps=None, epochs="3"), "epochs must be a whole number of at least 1, got '3'"),
    ("steps and epochs", lambda: task(epochs=2), "one of the two, got steps=5 and epochs=2"),
    ("a target without a bound", lambda: task(metric="loss"), "a target must be a metric with either at_least or"),
    ("a target with both bounds", lambda: task(metric="a", at_least=1.0, at_most=2.0), "at_least=1.0, at_most=2.0"),
    ("a name with a slash", lambda: task(name="a/b"), "without '/' or a leading dot, got 'a/b'"),
    ("a hidden name", lambda: task(name=".a"), "without '/' or a leading dot, got '.a'"),
    ("no name", lambda: Task(name="", program=Program(reference="a.py:f"), stop=Stop(steps=1)), "must be non-empty"),
    ("a seed that is no number", lambda: task(seed="x"), "'seed' must be a whole number, got 'x'"),
    ("a seed that is a fraction", lambda: task(seed=0.5), "'seed' must be a whole number, got 0.5"),
    ("a parameter that is an object", lambda: task(width=object()), "must be numbers, text, or lists and dicts"),
    ("a parameter that is a module", lambda: task(width=torch.nn.ReLU()), "'width' is of type ReLU"),
    (
        "a program that is a number",
        lambda: dt.task(3, name="a", steps=1),
        "a program must be a function or 'file.py:function'",
    ),
    ("a program without a function", lambda: Program(reference="a.py"), "'file.py:function' or 'package.module:"),
    ("a program that is not there", lambda: of("no.py:f"), "a program's file must exist; "),
    ("a module that is not there", lambda: of("no.such:f"), "'no.such' was not found on the path"),
    (
        "an unknown objective",
        lambda: dt.Workload(name="w", tasks=(task(),), objective="speed"),
        "objective must be one of ",
    ),
    ("first of nothing", lambda: Objective.parse("first:0"), "a number of results of at least 1, as in "),
    ("a deadline that has passed", lambda: Objective.parse("spend:deadline=0s"), "a deadline later than now"),
    ("an objective half written", lambda: Objective.parse("spend"), "'spend' must "),
    ("halving by one", lambda: dt.Halving(metric="a", first_steps=1, factor=1), "a factor of at least 2"),
    ("halving from nowhere", lambda: dt.Halving(metric="a", first_steps=0), "first_steps of at least 1"),
    ("halving to the side", lambda: dt.Halving(metric="a", first_steps=1, goal="up"), "goal 'max' or 'min'"),
    ("a range upside down", lambda: dt.uniform(2, 1), "uniform must have low <= high, got 2 and 1"),
    ("a logarithm of nothing", lambda: dt.log_uniform(0, 1), "log_uniform must have 0 < low <= high"),
    ("a sample of none", lambda: dt.sample(PROGRAM, count=0, steps=1), "a count of at least 1, got 0"),
    # Files and commands
    ("no file", command("run", "no.py"), "no.py must be a Python file; it is not there."),
    ("a folder", command("run", "."), ". must be a Python file"),
    ("another name", command("run", "sweep.py:mine"), "a workload or a search named 'mine'; found NoneType"),
    ("a file that raises", workload("raise RuntimeError('no')"), "importing it raised RuntimeError: no"),
    ("a file that is no Python", workload("def broken(:"), "importing it raised SyntaxError"),
    ("a workload that is a list", workload("workload = [1]"), "or a search named 'search'; found list"),
    ("no such option's value", command("run", "sweep.py", "--keep-bytes", "lots"), "such as '8 GiB'"),
    ("keeping nothing", command("run", "sweep.py", "--keep", "0"), "keep at least 1 checkpoint"),
    ("negative retries", command("run", "sweep.py", "--retries", "-1"), "0 retries, got 2 and -1"),
    ("saving all the time", command("run", "sweep.py", "--save-seconds", "0"), "after a positive time or number"),
    ("saving every no steps", command("run", "sweep.py", "--save-steps", "0"), "after a positive time or number"),
    ("a store that is a file", command("run", "sweep.py", "--store", "sweep.py"), "must be writable; found: "),
    ("an unknown objective asked for", command("plan", "sweep.py", "--objective", "fast"), "objective must be one of"),
    ("no time to solve", command("plan", "sweep.py", "--solve-seconds", "0"), "a time limit above 0 s, got 0.0"),
    ("a price without a figure", command("plan", "sweep.py", "--price", "a100"), "as in --price a100=2.50, got 'a100'"),
    (
        "a weight without a task",
        command("plan", "sweep.py", "--objective", "weighted", "--weight", "b=2"),
        "a weight must be for a task of the workload; there is no 'b'",
    ),
    ("weights for nothing", command("plan", "sweep.py", "--weight", "a=2"), "weights belong to objective 'weighted'"),
    ("an unknown device", command("plan", "sweep.py", "--cluster", "8xfoo"), "foo"),
    ("nothing to show", command("show"), "there must be a store at .dovetail; found none."),
    ("nothing to report", command("report"), "there must be a store at .dovetail; found none."),
    ("no task to export", command("export"), "export must be told which task"),
    ("a goal that is none", command("export", "--best", "a", "--goal", "up"), "--goal must be max or min, got 'up'"),
    ("nobody to stop", command("stop"), "a controller must be running on .dovetail to take commands; none is."),
    # Programs and trainings
    ("a parameter misspelled", lambda: build(task(widht=3)), "it takes ['width'], not 'widht'. Did you mean 'width'?"),
    ("a function that is not there", lambda: build(of("programs.py:bad")), "must define a function 'bad'"),
    ("a program that raises", lambda: build(of("programs.py:raises")), "it raised RuntimeError: no data"),
    ("a program that gives a model", lambda: build(of("programs.py:model")), "must return a dovetail."),
    ("no batches", lambda: stepped(lambda: training(batches=[])), "batches must give at least 1"),
    ("a batch of the wrong shape", lambda: stepped(lambda: training(batches=[torch.ones(2, 5)])), "float32[2, 5]"),
    ("accumulating nothing", lambda: training(accumulate=0), "accumulate"),
    ("an unknown precision", lambda: training(precision="fp8"), "precision"),
    # Records, units and clusters
    ("bytes in words", lambda: parse_bytes("many"), "such as '8 GiB' or '500 MB', got 'many'"),
    ("a time in words", lambda: parse_seconds("soon"), "such as '2h', '1h30min' or '90s', got 'soon'"),
    ("a record that is no JSON", lambda: loads(Task, "{"), "Task must be read from a line of JSON"),
    ("a record with a field missing", lambda: loads(Stop, '{"step": 1}'), "Stop"),
    ("an event of no kind", lambda: read_event("flew", at_seconds=0.0), "an event's kind must be one of "),
    ("a processor of no kind", lambda: Kind(name="x", processor="tpu"), "must be 'cpu' or 'cuda', got 'tpu'"),
    (
        "a profile that takes no time",
        lambda: Profile(family="f", kind="cpu", count=1, step_seconds=0.0, peak_bytes=0),
        "step_seconds > 0",
    ),
    (
        "an option of another gang",
        lambda: Option(families=("a", "b"), technique="fuse", kind="cpu", count=1, step_seconds=(1.0,)),
        "one step_seconds for each family of its gang, got 1 for 2",
    ),
    (
        "a device of no kind",
        lambda: Cluster(
            kinds=(CPU,),
            nodes=(Node(name="n0", cores=1, memory_bytes=1),),
            devices=(Device(name="d", kind="x", node="n0", index=0),),
        ),
        "device 'd' must be of a kind and on a node of its cluster",
    ),
    ("a cluster of nothing", lambda: parse_cluster("0xh100"), "0xh100"),
    ("settings that never save", lambda: Settings(save_every_seconds=-1), "got -1 s and None steps"),
    # What lies on disk
    ("a piece cut short", damaged("piece-00000.safetensors", lambda c: c[:-4]), "It is truncated."),
    ("a piece altered", damaged("piece-00000.safetensors", lambda c: c[:-1] + b"x"), "its bytes were altered."),
    ("an index altered", damaged("index.json", lambda c: c.replace(b"step", b"stop")), "altered or torn."),
    ("an index that is empty", damaged("index.json", lambda c: b""), "must hold a readable index.json"),
    ("a checkpoint of tomorrow", damaged("index.json", reformatted), "of checkpoint format 1 or older, it is 99."),
    ("a checkpoint that is not there", lambda: checkpoint.read(Path("none")), "must hold a readable index.json"),
    ("an attempt that was given up", stale, "newest attempt, 3; this is attempt 2, which was given up."),
    ("a fence altered", altered_fence, "must match its checksum; its bytes were altered"),
    ("a row altered", altered_row, "a row of its table events does not match its checksum"),
    ("a store of tomorrow", newer_store, "it is of version 99, written by a newer Dovetail."),
    ("a store that is held", held, f"is held by process {os.getpid()}. Wait for it"),
    ("a store that is locked", locked, "must accept writes; found: database is locked."),
    ("no store", lambda: Store(Path("none")), "there must be a store at none; found none."),
    ("a pickle of somebody else", foreign_pickle, "must carry this user's signature; it does not, so it was not"),
    ("a key that others can read", open_key, "must be readable by its owner alone (mode 0600)."),
    ("a key that is empty", short_key, "must hold 32 bytes, it holds 0."),
    ("a pickle that is not there", lambda: carried.fetch(Path(), "none"), "the pickled program 'none' must be in "),
    ("a metric that nobody reported", best_of_nothing, "some task must have reported 'accuracy'"),
    ("no workload in a file", lambda: load_workload("programs.py"), "must define a workload named 'workload'"),
]

PROGRAMS = """
def good(width=4): ...
def raises(): raise RuntimeError("no data")
def model():
    from torch import nn
    return nn.Linear(1, 1)
"""


def test_there_are_sixty_rows_and_more() -> None:
    assert len({name for name, _, _ in ROWS}) == len(ROWS) >= 60
    assert programs


@pytest.mark.parametrize(("call", "message"), [pytest.param(*row[1:], id=row[0]) for row in ROWS])
def test_the_answer_says_what_must_hold(call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setattr(carried, "_CARRIED", {})
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    (tmp_path / "programs.py").write_text(PROGRAMS)
    try:
        said = call()
        assert isinstance(said, str), "it was taken"
    except (DovetailError, ValueError) as error:
        said = str(error)
    assert message in said
    assert "Traceback" not in said
