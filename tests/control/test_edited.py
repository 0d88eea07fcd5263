"""A workload file that is edited between two runs: what goes on, what starts anew, and what the command says."""

from pathlib import Path

import pytest

from dovetail.store import Store
from tests.cli.processes import HOME, dovetail, events, rows, spans, write

pytestmark = pytest.mark.process

MODELS = """
import torch
from torch import nn

import dovetail as dt


def head(width):
    return nn.Linear(width, 1)


def train(model):
    batches = [torch.full((2, 4), float(n)) for n in range(4)]
    return dt.Training(
        model=model,
        batches=batches,
        loss=lambda model, batch: model(batch).square().mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        log_every=5,
    )


def plain(width=4):
    return train(nn.Linear(4, 1))


def deep(width=4):
    return train(nn.Sequential(nn.Linear(4, width), head(width)))
"""

BEFORE = """
import dovetail as dt

workload = dt.workload(
    [
        dt.task("models.py:plain", name="same", steps=20),
        dt.task("models.py:deep", name="edited", steps=20),
        dt.task("models.py:plain", name="removed", steps=20),
        dt.task("models.py:plain", name="longer", steps=20),
        dt.task("models.py:plain", name="other parameters", steps=20, width=4),
    ],
    name="edited",
)
"""

AFTER = """
import dovetail as dt

# A remark, which changes nothing.
workload = dt.workload(
    [
        dt.task("models.py:plain", name="added [bold]", steps=20),
        dt.task("models.py:plain", name="same", steps=20),
        dt.task("models.py:deep", name="edited", steps=20),
        dt.task("models.py:plain", name="longer", steps=30),
        dt.task("models.py:plain", name="other parameters", steps=20, width=5),
    ],
    name="edited",
)
"""


@pytest.fixture(scope="module")
def edited(tmp_path_factory):
    """A workload that was run, edited together with its model's code, and run again: folder and both outputs."""
    folder = write(tmp_path_factory.mktemp("edited"), models=MODELS, sweep=BEFORE)
    first = dovetail("run", "sweep.py", "--save-steps", "10", cwd=folder)
    # `deep` is edited in what it calls, not in itself.
    write(folder, models=MODELS.replace("nn.Linear(width, 1)", "nn.Linear(width, 2)"), sweep=AFTER)
    return folder, first, dovetail("run", "sweep.py", "--save-steps", "10", cwd=folder)


def test_both_runs_go_well(edited):
    assert (edited[1].code, edited[2].code) == (0, 0)
    assert {(row["status"]) for row in rows(edited[0]).values()} == {"finished"}


def test_the_first_run_has_nothing_to_tell(edited):
    assert "new:" not in edited[1].err


def test_the_second_says_what_became_of_each_task_before_it_starts(edited):
    told, _, _ = edited[2].err.partition(" running at step ")
    assert told.splitlines()[:6] == [
        "1 tasks go on as they are",
        "new: added [bold]",
        "goes on, 30 steps instead of 20 steps: longer",
        "starts anew, its program or parameters were edited: edited",
        "starts anew, its program or parameters were edited: other parameters",
        "no longer in the file, kept in the store: removed",
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("same", [(0, 20)]),
        ("edited", [(0, 20), (0, 20)]),
        ("removed", [(0, 20)]),
        ("longer", [(0, 20), (20, 30)]),
        ("other parameters", [(0, 20), (0, 20)]),
        ("added [bold]", [(0, 20)]),
    ],
)
def test_no_step_is_taken_twice_that_need_not_be(edited, name, expected):
    assert spans(edited[0], name) == expected


def test_what_goes_on_really_goes_on(edited):
    assert [event.step for event in events(edited[0], "longer", "saved")] == [10, 20, 30]
    with Store(edited[0] / HOME) as store:
        (identity,) = {task.identity for _, task in store.tasks() if task.name == "longer"}
        assert [point.step for point in store.points(identity, name="train/loss")] == [5, 10, 15, 20, 25, 30]


def test_what_was_replaced_or_removed_is_kept_and_not_shown(edited):
    assert sorted(rows(edited[0])) == ["added [bold]", "edited", "longer", "other parameters", "same"]
    for name in ("removed", "edited", "other parameters"):
        path = Path(events(edited[0], name, "saved")[1].path)
        assert path.name.startswith("step-000000020")
        assert path.is_dir()


def test_the_edited_model_is_the_one_that_was_trained(edited):
    sizes = [event.bytes for event in events(edited[0], "edited", "saved")]
    assert sizes[-1] > sizes[0]


def test_fewer_steps_than_were_taken_already_end_the_task(tmp_path):
    sweep = 'import dovetail as dt\nworkload = dt.workload([dt.task("models.py:plain", name="a", steps=40)])'
    write(tmp_path, models=MODELS, sweep=sweep)
    assert dovetail("run", "sweep.py", "--save-steps", "10", cwd=tmp_path).code == 0
    write(tmp_path, sweep=sweep.replace("40", "15"))
    assert dovetail("run", "sweep.py", "--save-steps", "10", cwd=tmp_path).code == 0
    assert rows(tmp_path)["a"]["status"] == "finished"


@pytest.mark.slow
def test_fresh_trains_anew_whatever_the_store_holds(tmp_path):
    sweep = 'import dovetail as dt\nworkload = dt.workload([dt.task("models.py:plain", name="a", steps=20)])'
    write(tmp_path, models=MODELS, sweep=sweep)
    assert dovetail("run", "sweep.py", "--save-steps", "10", cwd=tmp_path).code == 0
    first = rows(tmp_path)["a"]
    assert "Nothing" not in dovetail("run", "sweep.py", cwd=tmp_path).out
    assert spans(tmp_path, "a") == [(0, 20)]
    found = dovetail("run", "sweep.py", "--fresh", "--save-steps", "10", cwd=tmp_path)
    assert found.code == 0, found.err
    assert "starts anew, as was asked: a" in found.err
    assert spans(tmp_path, "a") == [(0, 20), (0, 20)]
    again = rows(tmp_path)["a"]
    for row in (first, again):
        row.pop("data_share", None)  # for how long it waited for its data
    assert again == first  # the same training, to the bit
    saved = Path(events(tmp_path, "a", "saved")[-1].path)
    assert {path.name for path in saved.parent.glob("step-*")} == {
        "step-000000010-attempt-0002",
        "step-000000020-attempt-0002",
    }
