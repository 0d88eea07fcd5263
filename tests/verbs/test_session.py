"""A session keeps its workers from run to run, and what is edited in between counts."""

from pathlib import Path

import psutil
import pytest

import dovetail as dt
from dovetail.engines.worker import PROCESS_NAME
from dovetail.vocabulary import TrainingError

PROGRAM = """
import torch

import dovetail as dt
from width import WIDTH


def tiny(learning_rate=0.1):
    model = torch.nn.Linear(4, WIDTH)
    return dt.Training(
        model=model,
        batches=[torch.ones(8, 4)],
        loss=lambda model, batch: model(batch).square().mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=learning_rate),
        evaluate=lambda model: {"width": model.out_features},
    )
"""


def workers() -> set[int]:
    """The processes of workers that this one has started."""
    found = psutil.Process().children()
    return {each.pid for each in found if each.name() == PROCESS_NAME and each.status() != "zombie"}


@pytest.fixture
def program(tmp_path: Path) -> str:
    (tmp_path / "width.py").write_text("WIDTH = 1\n")
    (tmp_path / "tiny.py").write_text(PROGRAM)
    return f"{tmp_path / 'tiny.py'}:tiny"


@pytest.mark.process
def test_the_next_run_finds_the_workers_of_the_last_and_edits_count(tmp_path: Path, program: str) -> None:
    before = workers()
    with dt.Session(store=tmp_path / "store") as session:
        (first,) = session.run(dt.grid(program, learning_rate=[0.1], steps=3), progress=False).tasks
        warm = workers() - before
        assert first.metrics["width"] == 1
        assert warm
        # A module beside the program's own file: what has imported it before must not go on with what it was.
        (tmp_path / "width.py").write_text("WIDTH = 2\n")
        (second,) = session.run(dt.grid(program, learning_rate=[0.1], steps=3), progress=False).tasks
        assert second.metrics["width"] == 2
        assert workers() - before == warm
        plan = session.plan(dt.grid(program, learning_rate=[0.2], steps=3))
        assert plan.schedule is not None
        assert workers() - before == warm
    assert workers() == before


REGISTERED = """
import torch

WIDTH = 1
torch.library.define("of_a_session::nothing", "(Tensor x) -> Tensor")
"""


@pytest.mark.process
def test_what_cannot_be_imported_twice_is_refused_with_what_to_do(tmp_path: Path, program: str) -> None:
    (tmp_path / "width.py").write_text(REGISTERED)
    with dt.Session(store=tmp_path / "store") as session:
        first = session.run(dt.grid(program, learning_rate=[0.1], steps=3), progress=False)
        assert first.tasks[0].status == "finished"
        with pytest.raises(TrainingError, match=r"of_a_session::nothing") as refused:
            session.run(dt.grid(program, learning_rate=[0.2], steps=3), progress=False)
    assert (
        "This worker had imported width.py before, in an earlier run of the session: what that registers with a "
        "library (torch.library, for one) is there already. Register only what is not there yet, or use dt.run "
    ) in str(refused.value)


@pytest.mark.process
def test_a_worker_that_died_between_runs_is_replaced(tmp_path: Path, program: str) -> None:
    before = workers()
    with dt.Session(store=tmp_path / "store") as session:
        session.run(dt.grid(program, learning_rate=[0.1], steps=3), progress=False)
        for worker in map(psutil.Process, workers() - before):
            worker.kill()
            worker.wait()
        result = session.run(dt.grid(program, learning_rate=[0.2], steps=3), progress=False)
    assert [task.status for task in result.tasks] == ["finished"]
    assert workers() == before
