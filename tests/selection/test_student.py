"""Students: what they score, choose and are judged by, and that they go on where they were stopped."""

import contextlib

import numpy
import pytest
import torch

from dovetail.describe import deposit, programs
from dovetail.selection import student
from dovetail.selection.choosing import fold_of
from dovetail.selection.examples import examples_of
from dovetail.store import write_atomically
from dovetail.train import RESIDENT, SessionMember, checkpoint
from dovetail.train.build import build
from dovetail.vocabulary import CheckpointError, Program, ProgramError, Stop, Task, to_json

STEPS, ROUNDS, FOLDS = 15, 3, 3


def task(plane, which, **parameters):
    described = plane if isinstance(plane, Program) else programs.program(plane)
    own = {"program": to_json(described), "arguments": parameters.pop("arguments", {})}
    parameters = {**own, "steps": STEPS, "folds": FOLDS, **parameters}
    program = programs.program(f"dovetail.selection.student:{which}")
    return Task(name="student", program=program, parameters=parameters, stop=Stop(steps=STEPS))


def opened(one):
    training = build(one)
    session = RESIDENT.open([SessionMember(training=training)], device=torch.device("cpu"), threads=1)
    return training, contextlib.closing(session)


def train(one, steps=STEPS):
    """Train a student to its end; gives its training, its state and what it is judged by."""
    training, opening = opened(one)
    with opening as session:
        for _ in range(steps):
            session.advance()
        return training, session.state(), session.evaluate()


@pytest.fixture
def scores(plane, tmp_path):
    """Folders with the checkpoints of the scoring students."""
    found = []
    for held in range(FOLDS):
        _, state, _ = train(task(plane, "scoring_student", held=held))
        checkpoint.write(tmp_path / f"score{held}", state, task="score", attempt=1)
        found.append(str(tmp_path / f"score{held}"))
    return found


def choosing(plane, scores, **more):
    common = {"strength": 0.1, "fraction": 0.2, "rounds": ROUNDS, "held": 0, "method": "maxgrad"}
    return task(plane, "chosen_student", scores=scores, **{**common, **more})


def test_every_example_is_scored_by_a_student_that_has_not_seen_it(plane, scores):
    found, classes = student.read_scores(scores)
    assert classes == 3
    assert len(found) == 90
    # The first nine have wrong labels: they are by far the hardest, as only students find them who did not see them.
    assert set(numpy.argsort(-found)[:9]) == set(range(9))


def test_students_of_a_feed_see_the_same_examples(plane):
    training = build(task(plane, "scoring_student", held=1, arguments={"feed": True}))
    seen = set(training.batches.numbers)
    assert seen == set(numpy.flatnonzero(fold_of(90, folds=FOLDS, seed=0) != 1))
    assert len(next(iter(training.batches))[1]) == 10


def test_maxgrad_chooses_round_by_round_and_begins_anew_in_each(plane, scores):
    training, opening = opened(choosing(plane, scores))
    initial = {name: value.clone() for name, value in training.model.state_dict().items()}
    fold, sizes = fold_of(90, folds=FOLDS, seed=0), []
    with opening as session:
        for _ in range(ROUNDS):
            assert all(torch.equal(value, initial[name]) for name, value in training.model.state_dict().items())
            assert training.optimizer.param_groups[0]["lr"] == 0.1
            assert not training.optimizer.state
            sizes.append(len(training.batches.numbers))
            for _ in range(STEPS):
                session.advance()
        assert session.evaluate()["accuracy"] > 0.8
    assert sizes == [4, 8, 12]  # a fifth of sixty
    chosen = training.batches.numbers
    assert len(set(chosen)) == 12
    assert not set(chosen) & set(numpy.flatnonzero(fold == 0))
    assert len(set(chosen) & set(range(9))) <= 2  # of sixty examples the six hardest were left out


def test_what_is_added_is_what_the_student_finds_hardest(plane, scores):
    training, opening = opened(choosing(plane, scores, strength=0.0))
    before = set(training.batches.numbers)
    with opening as session:
        for _ in range(STEPS - 1):
            session.advance()
        # What the step after which more is added will leave, seen from a copy.
        state = session.state()
        twin, opening_twin = opened(choosing(plane, scores, strength=0.0, rounds=1))
        with opening_twin as other:
            other.load(state)
            other.advance()
            rest = numpy.setdiff1d(numpy.flatnonzero(fold_of(90, folds=FOLDS, seed=0) != 0), list(before))
            found, _, _ = student.read_gradients(twin, examples_of(build_own(plane).batches), rest)
        session.advance()
    added = set(training.batches.numbers) - before
    assert added == set(rest[numpy.argsort(-found)[:4]])


def build_own(plane):
    return build(Task(name="own", program=programs.program(plane), stop=Stop(steps=1)))


@pytest.mark.parametrize("method", ["random", "el2n", "ccs"])
def test_other_methods_choose_before_the_first_step(plane, scores, method):
    training, _, metrics = train(choosing(plane, scores, method=method, strength=0.1))
    assert len(training.batches.numbers) == 12
    assert 0 <= metrics["accuracy"] <= 1
    assert "nothing" not in metrics  # it is judged by what was held back, not by the program's own evaluation


@pytest.mark.parametrize("stopped_at", [1, STEPS, STEPS + 4, 2 * STEPS])
def test_a_student_that_was_stopped_goes_on(plane, scores, stopped_at):
    one = choosing(plane, scores)
    whole, expected, _ = train(one, ROUNDS * STEPS)
    _, state, _ = train(one, stopped_at)
    training, opening = opened(one)
    with opening as session:
        session.load(state)
        for _ in range(ROUNDS * STEPS - stopped_at):
            session.advance()
        found = session.state()
    assert training.batches.numbers.tolist() == whole.batches.numbers.tolist()
    assert found.tensors.keys() == expected.tensors.keys()
    assert all(torch.equal(found.tensors[name], value) for name, value in expected.tensors.items())


def test_the_last_choice_is_among_all(plane, scores, tmp_path):
    _, state, metrics = train(choosing(plane, scores, held=None), (ROUNDS - 1) * STEPS)
    assert metrics == {}
    checkpoint.write(tmp_path / "choice", state, task="choice", attempt=1)
    chosen = student.read_chosen(str(tmp_path / "choice"))
    assert len(chosen) == 18
    assert sorted(chosen) == chosen.tolist()


def test_a_fraction_of_all_leaves_out_what_is_screened(plane, scores):
    training, _, _ = train(choosing(plane, scores, fraction=1.0), ROUNDS * STEPS)
    assert len(training.batches.numbers) == 54


def test_too_few_examples_for_the_splits_are_refused(plane):
    with pytest.raises(ProgramError, match=r"at least two examples for each of 3 splits.*there are 5"):
        build(task(plane, "scoring_student", held=0, arguments={"count": 5, "wrong": 0}))


def test_a_step_of_ones_own_is_refused(plane, tmp_path):
    text = (tmp_path / "plane.py").read_text()
    (tmp_path / "own.py").write_text(text.replace("loss=lambda", "step=lambda"))
    with pytest.raises(ProgramError, match="scored by their losses; a Training with a step function"):
        build(task(f"{tmp_path / 'own.py'}:plane", "scoring_student", held=0))


def test_a_notebooks_function_is_found_in_the_store(tmp_path, plane, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    module = programs.load_file(tmp_path / "plane.py")
    carried = programs.program(lambda seed=0: module.plane(feed=True, seed=seed))
    deposit(tmp_path / "store", write=write_atomically)
    one = task(carried, "scoring_student", held=0)
    assert len(build(one, home=tmp_path / "store").batches.examples) == 90


def test_what_is_no_classifier_is_judged_by_its_loss(tmp_path, plane):
    text = (tmp_path / "plane.py").read_text()
    (tmp_path / "line.py").write_text(
        text.replace("cross_entropy(model(batch[0]), batch[1])", "mse_loss(model(batch[0])[:, 0], batch[1].float())")
    )
    one = task(f"{tmp_path / 'line.py'}:plane", "scoring_student", held=0)
    training, _, _ = train(one)
    found, metrics, classes = student.read_gradients(training, training.batches.examples, numpy.arange(90))
    assert classes == 0
    assert metrics.keys() == {"loss"}
    assert (found > 0).any()


def test_a_checkpoint_that_is_gone_is_said(tmp_path):
    with pytest.raises(CheckpointError, match=r"a student's checkpoint must be in .*fresh=True"):
        student.read_scores([str(tmp_path / "nowhere")])
