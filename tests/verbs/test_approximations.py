"""What is allowed by name, from the verb to the checkpoint: tried, chosen, kept by a task that began so."""

import dataclasses
import os
import signal
from pathlib import Path

import pytest
import torch

import dovetail as dt
from dovetail.planning import PLANNERS
from dovetail.store import Store
from tests.engines.forking import forking_engine

pytestmark = pytest.mark.process


def wide(seed: int = 0) -> dt.Training:
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 1))
    batches = [torch.randn(16, 64, generator=torch.Generator().manual_seed(number)) for number in range(4)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return dt.Training(model=model, batches=batches, loss=lambda m, b: (m(b) ** 2).mean(), optimizer=optimizer)


def workload(steps: int = 40) -> dt.Workload:
    return dt.workload([dt.task(wide, name="a", steps=steps)], name="one", techniques="resident")


def only_approximate(problem):
    options = tuple(each for each in problem.options if each.knobs.get("approximate"))
    return PLANNERS["proportionate"](dataclasses.replace(problem, options=options or problem.options))


def chosen(store) -> list[str]:
    """With what each attempt took its steps."""
    with Store(store) as opened:
        events = [event for _, event in opened.events() if event.kind == "started"]
    return [event.option.knobs.get("approximate", "") for event in events]


def measured(store) -> set[str]:
    with Store(store) as opened:
        return {profile.knobs.get("approximate", "") for profile in opened.profiles()}


def run(store, **how):
    return dt.run(how.pop("what", workload()), store=store, progress=False, engine=forking_engine, **how)


def test_a_task_goes_on_as_it_began(tmp_path, monkeypatch):
    monkeypatch.setattr("dovetail.control.measuring.measuring.worthwhile", lambda missing, problem, **_: tuple(missing))
    run(tmp_path, allow="state-8bit", planner=only_approximate)
    assert measured(tmp_path) == {"", "state-8bit"}
    assert chosen(tmp_path) == ["state-8bit"]
    # More steps, and a planner that would take what is faster.
    run(tmp_path, what=workload(steps=60), allow="state-8bit")
    assert chosen(tmp_path) == ["state-8bit"] * 2
    with pytest.raises(dt.TrainingError, match="it began with state-8bit and goes on so: allow that"):
        run(tmp_path, what=workload(steps=80))


def halves(seed: int = 0, ends: str = "") -> dt.Training:
    """As `wide`, in bf16; while there is a file `ends`, its process is killed in its 30th step, and the file gone."""
    made = wide(seed)

    def kill_once(training: dt.Training, step: int) -> None:
        if ends and step == 30 and Path(ends).exists():
            Path(ends).unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    return dataclasses.replace(made, precision="bf16", callbacks=(kill_once,))


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bf16 computes it another way
@pytest.mark.parametrize(
    "way", ["state-8bit+weights-bf16", pytest.param("state-bf16+weights-bf16", marks=pytest.mark.slow)]
)
def test_stopped_and_killed_it_learns_what_it_learns_undisturbed(way, tmp_path):
    def trained(home, steps, ends=""):
        one = dt.task(halves, name="a", steps=steps, seed=3, ends=ends)
        what = dt.workload([one], name="one", techniques="resident", allow=way.replace("+", ","))
        run(home, what=dataclasses.replace(what, approximate=way))
        return dt.open_result(home)["a"]

    whole = trained(tmp_path / "whole", 40).model().state_dict()
    disturbed, ends = tmp_path / "disturbed", tmp_path / "ended"
    trained(disturbed, 20, str(ends))
    ends.touch()
    again = trained(disturbed, 40, str(ends)).model().state_dict()
    assert not ends.exists()
    assert chosen(disturbed) == [way] * 3
    assert all(torch.equal(tensor.bfloat16().float(), tensor) for tensor in again.values())
    assert all(torch.equal(again[name], tensor) for name, tensor in whole.items())


def test_a_task_that_began_exact_stays_exact(tmp_path, monkeypatch):
    monkeypatch.setattr("dovetail.control.measuring.measuring.worthwhile", lambda missing, problem, **_: tuple(missing))
    run(tmp_path)
    assert (measured(tmp_path), chosen(tmp_path)) == ({""}, [""])
    seen = []

    def planner(problem):
        seen.extend(each.knobs.get("approximate", "") for each in problem.options)
        return only_approximate(problem)

    run(tmp_path, what=workload(steps=60), allow="state-8bit", planner=planner)
    assert (measured(tmp_path), chosen(tmp_path)) == ({"", "state-8bit"}, ["", ""])
    assert set(seen) == {""}
