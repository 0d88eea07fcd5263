"""`dt.select` from question to answer: what it finds, remembers, and refuses."""

import numpy
import pytest

import dovetail as dt
from dovetail.describe import program
from dovetail.verbs.select_examples import _check_classes, _Question
from dovetail.vocabulary import DovetailError, TrainingError
from tests.selection.conftest import PROGRAM

QUICK = {"steps": 15, "rounds": 2, "splits": 2, "strengths": [0.1], "progress": False}


@pytest.fixture
def plane(tmp_path):
    (tmp_path / "plane.py").write_text(PROGRAM)
    return f"{tmp_path / 'plane.py'}:plane"


@pytest.mark.process
def test_it_chooses_remembers_and_notices_edits(tmp_path, plane):
    store = tmp_path / "store"
    found = dt.select(plane, fraction=0.2, store=store, **QUICK)
    assert found.count == 90
    assert len(found.indices) == len(set(found.indices)) == 18
    assert [(each.method, each.strength, len(each.scores)) for each in found.trials] == [
        ("random", 0.0, 2),
        ("maxgrad", 0.1, 2),
    ]
    means = {each.method: each.mean for each in found.trials}
    assert means[found.method] >= means["random"]
    # The same question is answered without a worker; an edited program is another question.
    assert dt.select(plane, fraction=0.2, store=store, engine=_refuse, **QUICK) == found
    (tmp_path / "plane.py").write_text(PROGRAM.replace("0.4 * torch", "0.5 * torch"))
    with pytest.raises(RuntimeError, match="another run"):
        dt.select(plane, fraction=0.2, store=store, engine=_refuse, **QUICK)


def _refuse(*given, **named):
    raise RuntimeError("another run")


@pytest.mark.process
def test_what_students_cannot_do_is_said_once(tmp_path):
    (tmp_path / "listed.py").write_text(PROGRAM.replace("return dt.Training(", "return _list(", 1) + LISTED)
    with pytest.raises(TrainingError, match=r"2 of 2 were not.*batches of type list have none"):
        dt.select(f"{tmp_path / 'listed.py'}:plane", fraction=0.5, store=tmp_path / "store", **QUICK)


def test_scores_are_found_once_whatever_the_fraction(plane):
    one, other = (
        _Question(program=program(plane), parameters={}, fraction=fraction, methods=("ccs",), **SAME)
        for fraction in (0.1, 0.5)
    )
    assert [task.identity for task in one.scoring_tasks()] == [task.identity for task in other.scoring_tasks()]
    assert one.digest() != other.digest()


@pytest.mark.parametrize(
    ("count", "words"),
    [(90, r"0.02 of 90 leaves 2 for 10 classes. Give at least 0.11"), (9, "there are 9 for 10 classes")],
)
def test_fewer_examples_than_classes_are_refused(plane, count, words):
    question = _Question(program=program(plane), parameters={}, fraction=0.02, methods=("ccs",), **SAME)
    with pytest.raises(DovetailError, match=words):
        _check_classes(question, count, 10)


SAME = {"strengths": (0.0,), "steps": 9, "rounds": 2, "splits": 3}

LISTED = """

def _list(**fields):
    return dt.Training(**{**fields, "batches": list(fields["batches"])})
"""


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"fraction": 0}, "a fraction must be above 0 and at most 1, got 0"),
        ({"fraction": 1.01}, "got 1.01"),
        ({"fraction": numpy.nan}, "got nan"),
        ({"fraction": "all"}, "got 'all'"),
        ({"method": "maxgrd"}, "must be one of ccs, el2n, maxgrad, got 'maxgrd'; did you mean 'maxgrad'"),
        ({"method": []}, "there must be a method to choose by"),
        ({"strengths": [1.0]}, "strengths of the screen must be parts"),
        ({"strengths": []}, "strengths of the screen must be parts"),
        ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
        ({"rounds": 1}, "rounds must be a whole number of at least 2, got 1"),
        ({"splits": 1.5}, "splits must be a whole number of at least 2, got 1.5"),
    ],
)
def test_questions_that_cannot_be_are_refused(wrong, words, plane, tmp_path):
    with pytest.raises(DovetailError, match=words):
        dt.select(plane, **{"fraction": 0.1, "store": tmp_path / "store", **wrong})


def test_a_parameter_that_the_program_does_not_take_is_refused(tmp_path):
    def program(width=1):
        raise NotImplementedError

    with pytest.raises(DovetailError, match=r"it takes .*width.*not 'wdth'. Did you mean 'width'"):
        dt.select(program, fraction=0.1, store=tmp_path / "store", wdth=3)
