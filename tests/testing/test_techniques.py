"""The suite itself is worth something only if it catches techniques that are wrong."""

import dataclasses

import pytest
import torch

from dovetail.testing import programs
from dovetail.testing.techniques import TechniqueConformance
from dovetail.train import RESIDENT, Technique, Training
from dovetail.train.resident import ResidentSession


class Wrong(Technique):
    """Resident with one thing done wrong."""

    name, exactness = "wrong", "none"

    def __init__(self, session):
        self._session = session

    def refuse(self, members):
        return RESIDENT.refuse(members)

    def open(self, members, *, device, threads):
        RESIDENT.open(members, device=device, threads=threads).close()
        return self._session(members[0], device=device, threads=threads)


class ForgetsItsOptimizer(ResidentSession):
    def load(self, state, member=0):
        kept = {name: {"groups": o["groups"], "state": {}} for name, o in state.values["optimizers"].items()}
        super().load(dataclasses.replace(state, values={**state.values, "optimizers": kept}))


class ForgetsItsBatches(ResidentSession):
    def load(self, state, member=0):
        cursor, self._cursor = self._cursor, type("Deaf", (), {"restore": lambda self, feed: None})()
        super().load(state)
        self._cursor = cursor


class DrawsAsItComes(ResidentSession):
    def __init__(self, member, **options):
        super().__init__(member, **options)
        self._random.close()
        self._random.begin = lambda step, microbatch: None
        self._cursor._before_draw = lambda epoch, index: None


class TrainsWhileEvaluating(ResidentSession):
    def evaluate(self, member=0):
        self.advance()
        return super().evaluate()


def suite(session):
    found = TechniqueConformance()
    found.technique = Wrong(session)
    return found


def test_a_right_one_passes(tmp_path):
    suite(ResidentSession).test_stopping_at_any_step_changes_nothing("dropout", tmp_path)


@pytest.mark.parametrize(
    ("session", "law", "arguments"),
    [
        (ForgetsItsOptimizer, "test_stopping_at_any_step_changes_nothing", ("momentum",)),
        (ForgetsItsBatches, "test_stopping_at_any_step_changes_nothing", ("momentum",)),
        (DrawsAsItComes, "test_what_happened_before_changes_no_draw", ("shared",)),
        (TrainsWhileEvaluating, "test_evaluating_changes_nothing", ("norm",)),
    ],
)
def test_a_wrong_one_is_caught(session, law, arguments, tmp_path):
    extra = (tmp_path,) if law == "test_stopping_at_any_step_changes_nothing" else ()
    with pytest.raises(AssertionError):
        getattr(suite(session), law)(*arguments, *extra)


@pytest.mark.parametrize("name", sorted(programs.PROGRAMS))
def test_two_builds_of_a_program_are_equal(name):
    one, other = programs.fresh(name).training, programs.fresh(name).training
    assert isinstance(one, Training)
    theirs = other.model.state_dict()
    assert all(torch.equal(tensor, theirs[key]) for key, tensor in one.model.state_dict().items())
