"""Who gives way to whom in a population, and with which parameters."""

import math
import random

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.control.searching.generations import MemberTrial, choose_parents, keyed
from dovetail.vocabulary import InvalidWorkload, Population

RULE = Population(every_steps=10)
values = st.lists(st.floats(-100, 100) | st.just(math.nan), min_size=2, max_size=12).map(lambda v: dict(enumerate(v)))


@given(values=values, goal=st.sampled_from(["max", "min"]), generation=st.integers(1, 5))
def test_the_worst_and_the_failed_give_way_to_the_best(values, goal, generation):
    parents = choose_parents(values, RULE, goal=goal, generation=generation)
    assert parents == choose_parents(values, RULE, goal=goal, generation=generation)
    valid = {place for place, value in values.items() if not math.isnan(value)}
    if not valid:
        assert parents == {}
        return
    assert values.keys() - valid <= parents.keys()
    sign = 1 if goal == "max" else -1
    for place, parent in parents.items():
        assert parent in valid - parents.keys()
        staying = valid - parents.keys()
        assert place not in valid or all(sign * values[place] <= sign * values[other] for other in staying)


@pytest.mark.parametrize(
    "wrong", [{"every_steps": 0}, {"replaced": 0.6}, {"replaced": 0.0}, {"resampled": 2.0}, {"factors": ()}]
)
def test_what_no_population_can_be_is_refused(wrong):
    with pytest.raises(InvalidWorkload, match="a population must have"):
        Population(**({"every_steps": 10} | wrong))


def test_a_member_is_near_its_parent_and_within_its_space():
    parent = {"rate": 0.01, "part": 0.5, "width": 32, "kind": "sgd"}
    near = Population(every_steps=10, resampled=0.0)
    for place in range(50):
        trial = MemberTrial(near, keyed(near, 1, place), parent)
        rate = trial.suggest_float("rate", 1e-4, 1e-1, log=True)
        assert min(abs(rate - 0.008), abs(rate - 0.0125)) < 1e-12
        assert trial.suggest_float("part", 0.0, 0.5, step=0.25) in (0.0, 0.25, 0.5)
        assert trial.suggest_int("width", 8, 32, step=8) in (24, 32)
        assert trial.suggest_categorical("kind", ["adam", "sgd"]) == "sgd"
        assert 1 <= trial.suggest_int("new", 1, 3) <= 3
        optuna.trial.create_trial(  # refuses values that are not in their distributions
            state=optuna.trial.TrialState.RUNNING, params=trial.params, distributions=trial.distributions
        )


def test_what_is_drawn_anew_is_from_all_of_the_space():
    anew = Population(every_steps=10, resampled=1.0)
    drawn = [
        MemberTrial(anew, random.Random(seed), {"x": 5}).suggest_float("x", 1.0, 100.0, log=True) for seed in range(99)
    ]
    assert min(drawn) < 2
    assert max(drawn) > 50
