import subprocess
import sys

import numpy
import pytest

from dovetail.serve.server.answer_watch import AnswerWatch
from dovetail.serve.server.replica import Answered
from dovetail.serve.server.schema import Schema
from dovetail.vocabulary import DovetailError

SCHEMA = Schema.of(numpy.zeros((1, 3), dtype="float32"))


def rows(count, *, seed, unsure=0.0, shift=0.0):
    """Inputs and answers; where the first number is high and the second low, so many are left to the second stage."""
    draw = numpy.random.default_rng(seed)
    inputs = draw.normal(size=(count, 3))
    inputs[:, 2] += shift
    here = (inputs[:, 0] > 0.68) & (inputs[:, 1] < -0.68)
    is_unsure = draw.random(count) < 0.1 + unsure * here
    scores = numpy.stack([numpy.zeros(count), numpy.where(is_unsure, 0.1, 3.0)], axis=1)
    return [inputs.astype("float32")], Answered(scores, is_unsure.astype(int))


def noted(watch, batch):
    watch.note(*batch)
    watch.look()


@pytest.fixture
def watch():
    said = []
    found = AnswerWatch(SCHEMA, said=said.append)
    found.said = said
    return found


def test_nothing_is_said_where_nothing_changes(watch):
    watch.set_reference(*rows(5000, seed=0))
    for seed in range(1, 11):
        noted(watch, rows(500, seed=seed))
    assert (watch.alarm_count, watch.said, watch.alarms) == (0, [], [])
    assert watch.escalated_share == pytest.approx(0.1, abs=0.02)


def test_escalations_of_a_combination_of_inputs_are_named_once(watch):
    watch.set_reference(*rows(5000, seed=0))
    for seed in range(1, 11):
        noted(watch, rows(500, seed=seed, unsure=0.9))
    assert watch.alarm_count >= 1
    first = watch.said[0]
    assert "inputs[0] = above" in first
    assert "inputs[1] = up to" in first
    assert len(watch.said) == len(set(watch.said)) <= 3
    assert {each["what"] for each in watch.alarms}


def test_without_rows_held_out_the_first_are_what_is_compared_with(watch):
    for seed in range(5):
        noted(watch, rows(500, seed=seed))
    assert not watch.said
    for seed in range(5, 10):
        noted(watch, rows(500, seed=seed, shift=1.0))
    assert "inputs[2] = " in watch.said[0]


def test_labels_tell_of_errors_and_calibration(watch):
    inputs, found = rows(5000, seed=0)
    draw = numpy.random.default_rng(1)
    right = (draw.random(5000) < 0.95).astype(int)
    watch.set_reference(inputs, found, right)
    for seed in range(2, 8):
        inputs, found = rows(500, seed=seed)
        labels = (draw.random(500) < 0.5).astype(int)
        assert watch.note_labels(inputs, found, labels) == pytest.approx(0.5, abs=0.1)
        watch.look()
    assert watch.said[0].startswith("drift of labels")
    assert "wrong before" in watch.said[0] or "above their probability" in watch.said[0]


def test_rows_of_a_drift_are_trained_on_once_for_each_model():
    asked, said, refuses = [], [], [True]

    def retrain(what, rows, reason):
        if refuses.pop() if refuses else False:
            raise DovetailError("a controller must be running")
        asked.append((what, rows, reason))
        return "1 task submitted"

    watch = AnswerWatch(SCHEMA, said=said.append, retrain=retrain)
    watch.set_reference(*rows(5000, seed=0))
    came = []
    for seed in range(1, 21):
        batch = rows(500, seed=seed, shift=0.0 if seed < 8 else 1.0)
        came.append(batch)
        watch.note([batch[0][0][:200]], Answered(batch[1].scores[:200], batch[1].stages[:200]))  # in two requests
        watch.note([batch[0][0][200:]], Answered(batch[1].scores[200:], batch[1].stages[200:]))
        watch.look()
    assert watch.alarm_count > 2
    (what, window, reason) = asked[0]
    assert (len(asked), what, sorted(window)) == (1, "answers", ["inputs", "outputs"])
    # The first alarm was refused; the second is of the block after it.
    numpy.testing.assert_array_equal(window["inputs"], came[8][0][0])
    numpy.testing.assert_array_equal(window["outputs"], came[8][1].scores)
    assert reason.startswith("drift of answers, in 500 rows: inputs[2] = ")
    assert said[1:3] == ["drift could not be trained on: a controller must be running", "1 task submitted"]
    watch.forget()
    watch.set_reference(*rows(5000, seed=0))
    noted(watch, rows(600, seed=50, shift=1.0))
    numpy.testing.assert_array_equal(asked[1][1]["inputs"], rows(600, seed=50, shift=1.0)[0][0][:500])


def test_rows_with_labels_are_trained_on_with_these():
    asked = []
    watch = AnswerWatch(SCHEMA, said=lambda _: None, retrain=lambda *given: asked.append(given) or "")
    inputs, found = rows(5000, seed=0)
    watch.set_reference(inputs, found, numpy.ones(5000, dtype=int))
    inputs, found = rows(500, seed=1)
    watch.note_labels(inputs, found, numpy.arange(500) % 2)
    watch.look()
    ((what, window, _),) = asked
    assert (what, window["labels"].tolist()) == ("labels", [0, 1] * 250)


def test_more_rows_than_are_looked_at_are_passed_over(watch):
    for seed in range(20):
        watch.note(*rows(500, seed=seed))
    assert watch._answers._rows <= 4500
    assert watch.rows == 10_000


def test_requests_of_unlike_lengths_are_one_table():
    watch = AnswerWatch(Schema.of({"tokens": numpy.zeros((1, 4), dtype="int64")}))
    draw = numpy.random.default_rng(0)
    for length in draw.integers(1, 9, 700):
        watch.note([numpy.zeros((3, length), dtype="int64")], Answered(draw.normal(size=(3, 2))))
    watch.look()
    assert len(watch._answers._parts.ends["length of tokens"]) == 3


@pytest.mark.process
@pytest.mark.parametrize("first", [True, False])
def test_a_model_with_stages_may_be_followed_by_one_without(watch, first):
    def batch(seed, *, has_stages):
        inputs, found = rows(500, seed=seed)
        return inputs, found if has_stages else Answered(found.scores)

    watch.set_reference(*batch(0, has_stages=first))
    watch.note(*batch(1, has_stages=first))
    for seed in range(2, 12):  # some are together with one of the first
        noted(watch, batch(seed, has_stages=not first))
    watch.forget()
    for seed in range(5):
        noted(watch, batch(seed, has_stages=first))
    assert (watch.alarm_count, watch.rows) == (0, 16 * 500)


def test_nothing_is_imported_while_requests_wait():
    program = """
import sys
from tests.serve.server.test_answer_watch import AnswerWatch, SCHEMA, noted, rows
from dovetail.serve.server.answer_watch import load_libraries
load_libraries()
before = set(sys.modules)
watch = AnswerWatch(SCHEMA, said=lambda _: None)
watch.set_reference(*rows(2000, seed=0), rows(2000, seed=0)[1].stages)
for seed in range(1, 5):
    noted(watch, rows(500, seed=seed, shift=1.0))
print(watch.alarm_count > 0, sorted(set(sys.modules) - before))
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said == "True []\n"
