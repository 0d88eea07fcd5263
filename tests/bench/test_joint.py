"""The bench of the joint planner runs, draws the workloads of the issue, and its peers pass the check."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from dovetail.planning import check

from .test_quick import ROOT, run


@pytest.fixture
def joint(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(ROOT / "bench"), *sys.path])
    spec = importlib.util.spec_from_file_location("bench_joint", Path(ROOT / "bench" / "joint.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_joint_prints_its_table_at_a_small_size() -> None:
    done = run("bench/joint.py", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 tasks on 8, largest proven gap" in done.stdout
    assert "one at a time" in done.stdout


def test_half_of_the_tasks_need_two_devices(joint: ModuleType) -> None:
    problem = joint.draw(10, {"a": 8, "b": 4}, seed=3)
    offered = sys.modules["joint_peers"].options_by_task(problem)
    fewest = [min(option.count for option in options) for options in offered.values()]
    assert sorted(fewest) == [1] * 5 + [2] * 5
    assert problem == joint.draw(10, {"a": 8, "b": 4}, seed=3)


def test_the_peers_place_every_task(joint: ModuleType) -> None:
    problem = joint.draw(20, {"a": 16, "b": 8}, seed=0)
    schedules = [
        joint.listed(problem, joint.widest, 0),
        joint.listed(problem, joint.frugal, 0),
        joint.listed(problem, joint.anything, 0),
        joint.listed(problem, joint.equal_split(problem), 0),
        joint.marginal_gain(problem),
    ]
    for schedule in schedules:
        check(schedule, problem.cluster)
        assert len(schedule.placements) == 20
