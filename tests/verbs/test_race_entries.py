"""Who enters a race, and what is refused before anything is trained."""

import dataclasses

import pytest

import dovetail as dt
from dovetail.verbs.race_entries import alone_techniques, enter_race, parse_target
from dovetail.vocabulary import DovetailError, Halving, InvalidWorkload

PROGRAM = "dovetail.testing.programs:dropout"
SEEDLESS = """
def net(width=8):
    ...
"""


def grid(**how):
    return dt.grid(PROGRAM, **{"steps": 9, "name": "nets", **how})


def names(entries):
    return [task.name for task in entries.workload.tasks]


def test_each_set_of_parameters_runs_with_each_seed():
    entries = enter_race(grid(rate=[0.1, 0.2]), until="accuracy>=0.9", seeds=2)
    assert list(entries.contestants) == ["dropout rate=0.1", "dropout rate=0.2"]
    assert names(entries) == [f"dropout rate={rate} seed={seed}" for rate in (0.1, 0.2) for seed in (0, 1)]
    assert {task.stop.target for task in entries.workload.tasks} == {"accuracy ≥ 0.9"}
    assert {task.stop.steps for task in entries.workload.tasks} == {9}


@pytest.mark.parametrize(
    ("workload", "seeds", "found"),
    [
        (grid(seed=[3, 4]), None, [3, 4]),
        (grid(seed=[3, 4]), 3, [0, 1, 2]),
        (grid(), None, [0, 1, 2, 3, 4]),
        (grid(), [7, 9], [7, 9]),
    ],
)
def test_seeds_are_those_wanted_or_the_workloads_own(workload, seeds, found):
    entries = enter_race(workload, until="accuracy>=0.9", seeds=seeds)
    assert [task.seed for task in entries.workload.tasks] == found
    assert len(entries.contestants) == 1


def test_the_race_is_a_workload_of_its_own():
    assert enter_race(grid(), until="accuracy>=0.9").workload.name == "nets race"


def test_targets_of_the_workload_count_where_none_is_given():
    entries = enter_race(grid(metric="loss", at_most=0.5, patience=None), seeds=1)
    assert entries.stop.at_most == 0.5


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("accuracy>=0.94", {"metric": "accuracy", "at_least": 0.94}),
        (" valid/loss ≤ 2e-1 ", {"metric": "valid/loss", "at_most": 0.2}),
        ("top 1>=-3", {"metric": "top 1", "at_least": -3.0}),
    ],
)
def test_targets_as_people_write_them(text, found):
    assert parse_target(text) == found


@pytest.mark.parametrize(
    "text", ["", "accuracy", "accuracy>0.9", "accuracy>=", ">=0.9", "accuracy>=high", "a>=nan", "a>=inf"]
)
def test_what_is_no_target_is_refused(text):
    with pytest.raises(DovetailError, match=r"a target .* must be a metric, >= or <=, and a number"):
        parse_target(text)


def test_a_race_without_a_metric_is_refused():
    with pytest.raises(DovetailError, match=r"a race must have a metric and a target to reach.*--until"):
        enter_race(grid(metric="loss", patience=3))


def test_several_targets_are_refused():
    both = dt.join(
        grid(metric="accuracy", at_least=0.8), grid(rate=[0.3], metric="accuracy", at_least=0.9), name="both"
    )
    with pytest.raises(DovetailError, match=r"one target for all; this workload has accuracy ≥ 0.8, accuracy ≥ 0.9"):
        enter_race(both)


def test_a_program_that_takes_no_seed_is_refused(tmp_path):
    (tmp_path / "nets.py").write_text(SEEDLESS)
    with pytest.raises(DovetailError, match=r"'net' takes \['width'\], and not 'seed'. Give it a parameter seed=0"):
        enter_race(dt.grid(f"{tmp_path}/nets.py:net", steps=9), until="accuracy>=0.9")


@pytest.mark.parametrize("seeds", [0, -1, [], [1, 1]])
def test_seeds_that_are_none_are_refused(seeds):
    with pytest.raises(DovetailError, match="seeds"):
        enter_race(grid(), until="accuracy>=0.9", seeds=seeds)


def test_halving_is_refused():
    halved = dataclasses.replace(grid(), halving=Halving(metric="accuracy", first_steps=2))
    with pytest.raises(InvalidWorkload, match="Leave halving out"):
        enter_race(halved, until="accuracy>=0.9")


def test_runs_have_their_devices_for_themselves_unless_told():
    assert "fuse" not in alone_techniques(2)
    assert "replicate" in alone_techniques(2)
    assert "replicate" not in alone_techniques()
    assert enter_race(grid(techniques="fuse"), until="accuracy>=0.9").workload.techniques == ("fuse",)
