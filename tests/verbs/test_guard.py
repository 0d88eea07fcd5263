"""Tolerances: pairs of real trainings decide whether an approximation is used."""

import dataclasses
from pathlib import Path

import pytest

import dovetail as dt
from dovetail.planning import PLANNERS, Problem
from dovetail.store import Store
from dovetail.verbs import guard
from dovetail.verbs.measure import profile
from dovetail.vocabulary import DovetailError, InvalidWorkload, Plan, Schedule
from dovetail.vocabulary.approximations import split_knobs
from dovetail.vocabulary.events import ApproximationJudged, AttemptStarted, DevicesReleased
from tests.engines.forking import forking_engine

PROGRAM = """
import torch
from torch import nn
import dovetail as dt

CENTRES = torch.randn(4, 16, generator=torch.Generator().manual_seed(7))

def draw(count, number):
    generator = torch.Generator().manual_seed(number)
    labels = torch.randint(4, (count,), generator=generator)
    return CENTRES[labels] + 0.7 * torch.randn(count, 16, generator=generator), labels

def classify(learning_rate=0.01, seed=0, harm=0.0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 4))
    inputs, labels = draw(400, 10**6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)

    def evaluate(model):
        coded = any("exp_avg_scale" in slots for slots in optimizer.state.values())
        right = (model(inputs).argmax(1) == labels).float().mean().item()
        return {"accuracy": right - harm * coded}

    return dt.Training(
        model=model, batches=[draw(16, 1000 * seed + number) for number in range(10)],
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        optimizer=optimizer, evaluate=evaluate, allow={"state-8bit"},
    )
"""


def prefer_approximate(problem: Problem) -> Plan:
    """Planners take what is faster; of so small a model that may be either."""
    able = {family for option in problem.options if split_knobs(option.knobs)[0] for family in option.families}
    kept = [o for o in problem.options if split_knobs(o.knobs)[0] or not able.intersection(o.families)]
    return PLANNERS["proportionate"](dataclasses.replace(problem, options=tuple(kept)))


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return f"{path}:classify"


def run(program: str, store: Path, *, harm: float, keep: dict[str, float]) -> dt.Result:
    sweep = dt.grid(program, learning_rate=[0.01, 0.003], harm=harm, steps=20, name="sweep", techniques="resident")
    profile(sweep, store=store)  # of trainings as short as these, only one option would be worth a trial
    how = {"keep": keep, "planner": prefer_approximate, "store": store, "engine": forking_engine}
    return dt.run(sweep, progress=False, **how)


def events(store: Path, kind: type) -> list:
    with Store(store) as opened:
        return [event for _, event in opened.events() if isinstance(event, kind)]


def ways(store: Path) -> set[str]:
    return {split_knobs(event.option.knobs)[0] for event in events(store, AttemptStarted)}


@pytest.mark.slow
@pytest.mark.process
def test_what_is_harmless_is_used_and_not_judged_twice(program: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    result = run(program, store, harm=0.0, keep={"accuracy": 0.05})
    (judged,) = events(store, ApproximationJudged)
    assert judged.keeps
    assert judged.pairs >= guard.FIRST_PAIRS
    assert judged.seconds > 0
    assert ways(store) == {"state-8bit"}
    assert "may be trained with state-8bit: accuracy: it loses" in result.judged[0]
    guarding = [each for each in events(store, DevicesReleased) if each.purpose == "guard"]
    assert sum(each.duration_seconds for each in guarding) > 0
    again = run(program, store, harm=0.0, keep={"accuracy": 0.06})
    assert len(events(store, ApproximationJudged)) == 1
    assert again.judged == result.judged


@pytest.mark.process
def test_what_is_harmful_leaves_the_family_exact(program: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    result = run(program, store, harm=0.3, keep={"accuracy": 0.05})
    (judged,) = events(store, ApproximationJudged)
    assert not judged.keeps
    assert ways(store) == {""}
    assert all(task.status == "finished" for task in result.tasks)
    assert "stays exact, not trained with state-8bit: accuracy: it loses" in result.judged[0]


@pytest.mark.process
def test_a_metric_that_is_never_reported_is_refused_by_name(program: str, tmp_path: Path) -> None:
    with pytest.raises(DovetailError, match=r"'f1' is never reported, but \['accuracy', 'train/loss'\]"):
        dt.run(dt.grid(program, seed=[0], steps=20), keep={"f1": 0.01}, store=tmp_path / "store", progress=False)


@pytest.mark.parametrize(
    ("keep", "message"),
    [({"accuracy": 0.0}, "must be a number above 0"), ({"speed": 0.1}, "whose name says whether more of it is better")],
)
def test_what_is_no_tolerance_is_refused(keep: dict[str, float], message: str, tmp_path: Path) -> None:
    workload = dt.grid("dovetail.testing.programs:dropout", seed=[0], steps=9)
    with pytest.raises(InvalidWorkload, match=message):
        dt.run(workload, keep=keep, store=tmp_path)


def test_searches_have_no_tolerances(tmp_path: Path) -> None:
    search = dt.Search("dovetail.testing.programs:dropout", {"seed": [0, 1]}, metric="loss", steps=9)
    with pytest.raises(InvalidWorkload, match="those of a search come as"):
        dt.run(search, keep={"loss": 0.1}, store=tmp_path)


def test_a_plan_has_chosen_already() -> None:
    workload = dt.grid("dovetail.testing.programs:dropout", seed=[0], steps=9)
    with pytest.raises(DovetailError, match="must go with a workload"):
        dt.run(Plan(workload=workload, schedule=Schedule(placements=())), keep={"loss": 0.1})


def test_what_all_tasks_are_to_be_trained_with_must_be_known() -> None:
    workload = dt.grid("dovetail.testing.programs:dropout", seed=[0], steps=9)
    assert dataclasses.replace(workload, approximate="").approximate == ""
    with pytest.raises(InvalidWorkload, match="got 'state-7bit'"):
        dataclasses.replace(workload, approximate="fp8+state-7bit")
