"""`dovetail logs`: what each task's program has printed, apart from what the others have."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dovetail.cli.app import app
from dovetail.engines.base import order_log
from dovetail.engines.worker import writing_to_log
from dovetail.store import Store
from dovetail.vocabulary import Event, Option, Program, Stop, Task
from dovetail.vocabulary.events import AttemptStarted, AttemptStopped, TaskChanged, TaskFinished, TaskVanished
from tests.cli.processes import HOME, begin, dovetail, end, in_process, rows, until, write

PROGRAM = """
import os
import time
import torch
import dovetail as dt


def line(rate=0.1, fail=False, pause=0.0):
    print(f"building {rate}")
    model = torch.nn.Linear(1, 1)
    x = torch.linspace(-1, 1, 16).unsqueeze(1)

    def loss(model, batch):
        print(f"step of {rate}", flush=True)
        os.system(f"echo from a child of {rate}")
        time.sleep(pause)
        return (model(batch) - 3 * batch).square().mean()

    def evaluate(model):
        if fail:
            raise LookupError("no scores")
        return {"score": 1.0}

    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    return dt.Training(model=model, batches=[x], loss=loss, optimizer=optimizer, evaluate=evaluate, evaluate_every=3)


workload = dt.join(
    dt.grid(line, rate=[0.1, 0.2], steps=3), dt.grid(line, rate=[0.3], fail=True, steps=3), name="logged"
)
slow = dt.grid(line, rate=[0.5], pause=0.05, steps=100_000)
"""


def test_an_order_writes_to_its_own_log_and_an_empty_one_is_removed(tmp_path, capfd):
    log = tmp_path / "order.log"
    with writing_to_log(str(log)):
        os.write(1, b"inside\n")  # sys.stdout is pytest's own here
        os.write(2, b"and here\n")
    os.write(1, b"outside\n")
    assert log.read_text().splitlines() == ["inside", "and here"]
    assert "outside" in capfd.readouterr().out
    with (
        writing_to_log(str(tmp_path / "other.log")),
        writing_to_log(None),
        writing_to_log(str(tmp_path / "no" / "log")),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["order.log"]


@pytest.mark.process
def test_each_task_has_a_log_of_its_own_and_failures_say_what_raised_and_where(tmp_path):
    write(tmp_path, sweep=PROGRAM)
    found = dovetail("run", "sweep.py", "--exact", "--techniques", "resident", cwd=tmp_path)
    assert found.code == 1, found.err
    assert "evaluation, sweep.py:" in found.out
    assert "in evaluate)" in found.out
    assert "line rate=0.3 failed, evaluation:" in found.out
    assert 'raise LookupError("no scores")' in found.out  # the traceback itself
    one = dovetail("logs", "rate=0.1", cwd=tmp_path)
    assert one.code == 0, one.err
    assert one.out.count("step of 0.1") == one.out.count("from a child of 0.1") == 3
    assert "building 0.1" in one.out
    assert "0.2" not in one.out
    assert "attempt 1 finished at step 3" in one.out
    broken = in_process("logs", rows(tmp_path)["line rate=0.3"]["id"][:8], cwd=tmp_path)
    assert "LookupError: no scores" in broken.out
    assert "── as it was built or measured, failed: task 'line rate=0.3' raised LookupError" in broken.out
    both = in_process("logs", "rate=0.[12]", cwd=tmp_path)
    assert "── line rate=0.1, attempt 1" in both.out
    assert "step of 0.2" in both.out
    assert rows(tmp_path)["line rate=0.3"]["phase"] == "evaluation"


def _task(rate: float) -> Task:
    return Task(name="line", program=Program(reference="sweep.py:line"), parameters={"rate": rate}, stop=Stop(steps=9))


def _begin_attempt(store: Store, home: Path, task: Task, *, number: int, printed: str) -> None:
    """Put on record that an attempt at a task began, and what it has printed."""
    where = {"placement": str(number), "devices": ("n0:0",), "predicted_seconds": 1.0}
    start = AttemptStarted(task=task.identity, attempt=1, at_seconds=1.0, step=0, until=9, **where)
    store.add(tasks=[("sweep", task)], events=[start])
    (home / "logs").mkdir(exist_ok=True)
    order_log(home / "logs", str(number)).write_text(printed)


@pytest.fixture
def followed(tmp_path):
    """What `dovetail logs --follow` prints of the task `line`, stopped at step 5 in an earlier run, after these events;
    given another task, of one that was edited since."""

    def follow(*events: Event, edited: Task | None = None, word: str = "line"):
        with Store(tmp_path, write=True) as store:
            _begin_attempt(store, tmp_path, OLD, number=1, printed="from the old one\n")
            store.add(events=[AttemptStopped(task=OLD.identity, attempt=1, at_seconds=2.0, step=5), *events])
            if edited is not None:
                _begin_attempt(store, tmp_path, edited, number=2, printed="from the new one\n")
                store.add(events=[TaskFinished(task=edited.identity, attempt=1, at_seconds=4.0, step=9)])
        return CliRunner().invoke(app, ["logs", "--follow", word, "--store", str(tmp_path)])

    return follow


OLD, NEW = _task(0.1), _task(0.2)


@pytest.mark.timeout(60)
class TestFollowing:
    def test_ends_where_the_task_is_gone_from_its_workload(self, followed):
        found = followed(TaskVanished(task=OLD.identity, at_seconds=3.0))
        assert found.exit_code == 0
        assert found.output.splitlines()[1:] == [
            "from the old one",
            "── attempt 1 stopped at step 5 ──",
            "── no longer in its workload; kept in the store ──",
        ]

    def test_a_name_means_the_task_that_has_it_now(self, followed):
        found = followed(TaskChanged(task=OLD.identity, at_seconds=3.0, by=NEW.identity), edited=NEW)
        assert found.exit_code == 0
        assert "from the new one" in found.output
        assert "from the old one" not in found.output

    def test_an_id_means_the_task_that_was_edited_since(self, followed):
        changed = TaskChanged(task=OLD.identity, at_seconds=3.0, by=NEW.identity)
        found = followed(changed, edited=NEW, word=OLD.identity)
        assert found.exit_code == 0
        assert "from the old one" in found.output
        assert "edited since: another task of this name has taken its place" in found.output

    def test_ends_where_nothing_runs_that_could_go_on(self, followed, tmp_path):
        found = followed()
        assert found.exit_code == 0
        assert found.stderr == (
            f"line has not ended, it is at step 5; nothing runs on {tmp_path} now. Run its workload again to go on.\n"
        )


@pytest.mark.process
def test_a_log_is_followed_until_its_task_has_ended(tmp_path):
    write(tmp_path, sweep=PROGRAM)
    process = begin("run", "sweep.py:slow", "--save-seconds", "1", cwd=tmp_path)
    try:
        until(lambda: list((tmp_path / HOME / "logs").glob("order-*.log")), what="the first step")
        following = begin("logs", "--follow", "rate=0.5", cwd=tmp_path)
        try:
            told = [following.stdout.readline() for _ in range(9)]
            assert dovetail("cancel", "line*", cwd=tmp_path).code == 0
        finally:
            followed = end(following)
    finally:
        ended = end(process)
    assert followed.code == 0, followed.err
    assert any("step of 0.5" in line for line in told)
    assert ended.code == 0, ended.err


def test_what_a_program_printed_steers_no_terminal_and_shows_no_secret(tmp_path):
    task = Task(name="a", program=Program(reference="a.py:f"), stop=Stop(steps=9), parameters={"auth": "hunter22"})
    at = {"task": task.identity, "attempt": 1}
    started = AttemptStarted(
        **at, at_seconds=1.0, placement="1-1", devices=("n0:0",), step=0, until=9, predicted_seconds=1.0
    )
    with Store(tmp_path, write=True) as store:
        store.add(tasks=[("w", task)], events=[started])
    log = order_log(tmp_path / "logs", "1-1")
    log.parent.mkdir(exist_ok=True)
    # A secret lies across the end of what is read at once.
    log.write_text(
        "\x1b]0;owned\x07\x1b[31mred\x1b[0m\r50%\r100%\n" + "x" * 65_490 + "\n" + "é" * 20 + " hunter22 end\n"
    )
    found = CliRunner().invoke(app, ["logs", "a", "--store", str(tmp_path)], color=True).output
    assert "\x1b]" not in found
    assert "\x1b[31mred\x1b[0m\n50%\n100%\n" in found
    assert "é" * 20 + " *** end" in found


def test_a_log_that_a_gang_has_in_common_says_so(tmp_path):
    tasks = [
        Task(name=name, program=Program(reference="a.py:f"), stop=Stop(steps=9), parameters={"name": name})
        for name in ("a", "b")
    ]
    option = Option(families=("f", "f"), technique="fuse", kind="cpu", count=1, step_seconds=(1.0, 1.0))
    where = {"placement": "1-1", "devices": ("n0:0",), "predicted_seconds": 1.0, "option": option}
    starts = [AttemptStarted(task=task.identity, attempt=1, at_seconds=1.0, step=0, until=9, **where) for task in tasks]
    with Store(tmp_path, write=True) as store:
        store.add(tasks=[("w", task) for task in tasks], events=starts)
    found = CliRunner().invoke(app, ["logs", "a", "--store", str(tmp_path)]).output
    assert "on n0:0, one of 2 at once, with the output of all, from step 0" in found
