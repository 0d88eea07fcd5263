"""The bench of sharing runs; its simulation keeps the rules it states."""

import dataclasses
import importlib
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest

from dovetail.describe.traces import Arrival
from dovetail.planning.share.policies import POLICIES
from dovetail.vocabulary import Option

from .test_quick import ROOT, run

DATA = Path(ROOT).parent / "shared" / "data"
FAIR = POLICIES["max_min_fairness"]


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(ROOT / "bench"), *sys.path])
    return importlib.import_module("streams")


def option(kind: str, rate: float, *, count: int = 1, family: str = "f") -> Option:
    return Option(families=(family,), technique="replicate", kind=kind, count=count, step_seconds=(1 / rate,))


def arrive(task: str, *, steps: int = 3600, at: float = 0.0) -> Arrival:
    return Arrival(task=task, family="f", steps=steps, at_seconds=at)


@pytest.mark.skipif(not DATA.exists(), reason="../shared/data is not beside the repository")
def test_share_prints_its_table_at_a_small_size() -> None:
    done = run("bench/share.py", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "16,384 unlike tasks, gap" in done.stdout
    assert "15,000 Philly tasks, wall seconds" in done.stdout
    assert "met     pairs predicted with 10% measured, worst median error of a rate left out" in done.stdout
    assert "nearly equal tasks on a grid, times less CPU" in done.stdout


def test_a_task_alone_takes_as_long_as_its_steps(streams: ModuleType) -> None:
    done = streams.simulate(
        [arrive("a")], options=[option("k", 1.0)], cluster=streams.cluster_of({"k": 1}), policy=FAIR, checked=True
    )
    assert done.seconds == {"a": pytest.approx(3600.0)}
    # Nothing can change before it ends, so there is one round.
    assert (done.rounds, done.allocations, done.moves) == (1, 1, 1)


def test_an_arrival_is_seen_at_the_next_round(streams: ModuleType) -> None:
    done = streams.simulate(
        [arrive("a", at=100.0), arrive("b", at=361.0)],
        options=[option("k", 1.0)],
        cluster=streams.cluster_of({"k": 2}),
        policy=FAIR,
        checked=True,
    )
    assert done.seconds == {"a": pytest.approx(3600.0 + 260.0), "b": pytest.approx(3600.0 + 359.0)}


def test_two_tasks_share_a_device(streams: ModuleType) -> None:
    arrivals = [arrive("a"), arrive("b")]
    done = streams.simulate(
        arrivals, options=[option("k", 1.0)], cluster=streams.cluster_of({"k": 1}), policy=FAIR, checked=True
    )
    assert done.makespan_seconds == pytest.approx(7200.0)
    assert min(done.seconds.values()) >= 5400.0
    assert done.utilisation == pytest.approx(1.0)


def test_moves_are_charged(streams: ModuleType) -> None:
    how = {"options": [option("k", 1.0)], "cluster": streams.cluster_of({"k": 1}), "policy": FAIR}
    free = streams.simulate([arrive("a"), arrive("b")], **how)
    charged = streams.simulate([arrive("a"), arrive("b")], move_seconds=30.0, **how)
    assert charged.makespan_seconds >= free.makespan_seconds + 30.0 * 2
    assert charged.makespan_seconds <= free.makespan_seconds + 30.0 * charged.moves + 360.0


def test_the_blind_plan_with_equal_rates_and_live_by_the_true_ones(streams: ModuleType) -> None:
    options = [
        option("fast", 4.0),
        option("slow", 1.0),
        option("fast", 1.0, family="g"),
        option("slow", 1.0, family="g"),
    ]
    arrivals = [arrive("a", steps=40_000), Arrival(task="b", family="g", steps=10_000, at_seconds=0.0)]
    cluster = streams.cluster_of({"fast": 1, "slow": 1})
    aware = streams.simulate(arrivals, options=options, cluster=cluster, policy=FAIR)
    blind = streams.simulate(arrivals, options=options, cluster=cluster, policy=FAIR, blind=True)
    assert aware.mean_hours < blind.mean_hours


def test_a_predicted_pair_is_known_once_it_has_run(streams: ModuleType) -> None:
    """Together both would be twice as fast as in turns, it is said; they are four times slower than alone."""

    def pair(rate: float) -> Option:
        return dataclasses.replace(option("k", 1.0), families=("f", "f"), step_seconds=(1 / rate, 1 / rate))

    how = {"options": [option("k", 1.0)], "cluster": streams.cluster_of({"k": 1}), "policy": FAIR, "checked": True}
    arrivals = [arrive("a"), arrive("b")]
    guessed = streams.simulate(arrivals, predicted=[(pair(1.0), pair(0.25))], most_seconds_between=720.0, **how)
    alone = streams.simulate(arrivals, **how)
    # What they lose is the time until shares are given anew.
    assert alone.makespan_seconds < guessed.makespan_seconds <= alone.makespan_seconds + 1080.0
    right = streams.simulate(arrivals, predicted=[(pair(0.5), pair(1.0))], **how)
    assert right.makespan_seconds <= alone.makespan_seconds


def test_shares_may_stay_in_force_for_a_while(streams: ModuleType) -> None:
    arrivals = [arrive(f"t{n}", steps=500 + 300 * n, at=50.0 * n) for n in range(12)]
    how = {"options": [option("k", 1.0)], "cluster": streams.cluster_of({"k": 3}), "policy": FAIR, "checked": True}
    often = streams.simulate(arrivals, **how)
    seldom = streams.simulate(arrivals, least_seconds_between=1920.0, **how)
    assert seldom.allocations < often.allocations
    assert sorted(seldom.seconds) == sorted(often.seconds)
    assert all(math.isfinite(each) for each in seldom.seconds.values())
