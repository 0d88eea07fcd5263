"""From spaces to parameters: what Optuna suggests is what a task of ours may have, and asking twice changes nothing."""

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

import dovetail as dt
from dovetail.control.searching.suggesting import suggest_parameters
from dovetail.describe.searches import Search
from dovetail.vocabulary import InvalidWorkload


def build(**parameters: object) -> None:
    """A program that takes whatever it is given."""


SPACE = {
    "rate": dt.log_uniform(1e-4, 1e-1),
    "part": dt.uniform(0.0, 1.0, step=0.3),
    "width": dt.integers(16, 70, step=16),
    "depth": dt.integers(1, 64, log=True),
    "kind": ["adam", "sgd"],
    "layers": dt.choice([8, 8], [16], {"a": 1}),
    "momentum": dt.when(dt.uniform(0.8, 0.99), kind="sgd"),
    "boost": dt.when([1, 2], momentum=lambda value: value > 0.9),
    "theirs": FloatDistribution(0.0, 2.0),
    "whole": IntDistribution(2, 8, step=2),
    "either": CategoricalDistribution(["a", None, 3]),
    "fixed": [[1, 2]],
    "plain": {"a": 1},
}


@pytest.fixture
def study():
    return optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))


def test_parameters_are_in_their_space_and_the_same_when_asked_for_again(study):
    found = Search(build, SPACE, metric="loss", steps=9)
    seen = []
    for _ in range(60):
        trial = study.ask()
        one = suggest_parameters(found, trial)
        seen.append(one)
        assert one == suggest_parameters(found, trial) == suggest_parameters(found, study.trials[-1])
        assert 1e-4 <= one["rate"] <= 1e-1
        assert one["part"] in (0.0, 0.3, 0.6, pytest.approx(0.9))
        assert one["width"] in (16, 32, 48, 64)
        assert 1 <= one["depth"] <= 64
        assert one["layers"] in ([8, 8], [16], {"a": 1})
        assert ("momentum" in one) == (one["kind"] == "sgd")
        assert ("boost" in one) == (one.get("momentum", 0) > 0.9)
        assert 0 <= one["theirs"] <= 2
        assert one["whole"] in (2, 4, 6, 8)
        assert one["either"] in ("a", None, 3)
        assert (one["fixed"], one["plain"]) == ([1, 2], {"a": 1})
        found.task(trial.number, one)
    assert {len(one) for one in seen} == {len(SPACE) - 2, len(SPACE) - 1, len(SPACE)}


def test_a_function_of_a_trial_gives_the_parameters(study):
    def space(trial):
        return {"widths": [trial.suggest_int(f"width{n}", 1, 9) for n in range(trial.suggest_int("depth", 1, 3))]}

    trial = study.ask()
    found = suggest_parameters(Search(build, space, metric="loss", steps=9), trial)
    assert len(found["widths"]) == trial.params["depth"]


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"rate": dt.log_uniform(1, 9, step=2)}, "'rate' has step 2"),
        ({"rate": dt.choice(1, 2, weights=[1, 3])}, "'rate' must have none of its own"),
        (lambda trial: None, "gives the parameters of a task as a dict, got None"),
    ],
)
def test_what_no_sampler_can_draw_is_refused(study, space, message):
    with pytest.raises(InvalidWorkload, match=message):
        suggest_parameters(Search(build, space, metric="loss", steps=9), study.ask())
