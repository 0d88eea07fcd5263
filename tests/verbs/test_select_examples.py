"""`dt.select` from question to answer: what it finds, remembers, and refuses."""

import numpy
import pytest

import dovetail as dt
from dovetail.vocabulary import DovetailError, TrainingError
from tests.selection.conftest import PROGRAM

QUICK = {"steps": 15, "rounds": 2, "splits": 3, "strengths": [0.0, 0.1], "progress": False}


@pytest.fixture
def plane(tmp_path):
    (tmp_path / "plane.py").write_text(PROGRAM)
    return f"{tmp_path / 'plane.py'}:plane"


@pytest.mark.process
def test_it_chooses_remembers_and_notices_edits(tmp_path, plane):
    store = tmp_path / "store"
    found = dt.select(plane, fraction=0.2, store=store, method=["maxgrad", "ccs"], **QUICK)
    assert found.count == 90
    assert len(found.indices) == len(set(found.indices)) == 18
    assert [(each.method, each.strength) for each in found.trials] == [
        ("random", 0.0),
        ("maxgrad", 0.0),
        ("maxgrad", 0.1),
        ("ccs", 0.0),
        ("ccs", 0.1),
    ]
    assert all(len(each.scores) == 3 for each in found.trials)
    means = {(each.method, each.strength): each.mean for each in found.trials}
    assert means[found.method, found.strength] >= means["random", 0.0]
    # The same question is answered without a worker; an edited program is another question.
    tasks = len(dt.open_result(store).tasks)
    assert dt.select(plane, fraction=0.2, store=store, method=["maxgrad", "ccs"], engine=_refuse, **QUICK) == found
    # Another fraction asks for other choices, by the same scores.
    dt.select(plane, fraction=0.5, store=store, method="el2n", **QUICK)
    scoring = [each for each in dt.open_result(store).tasks if "scores" in each.name]
    assert len(scoring) == 3
    assert len(dt.open_result(store).tasks) > tasks - 1
    (tmp_path / "plane.py").write_text(PROGRAM.replace("0.4 * torch", "0.5 * torch"))
    with pytest.raises(RuntimeError, match="another run"):
        dt.select(plane, fraction=0.2, store=store, method=["maxgrad", "ccs"], engine=_refuse, **QUICK)


def _refuse(*given, **named):
    raise RuntimeError("another run")


@pytest.mark.process
def test_what_students_cannot_do_is_said_once(tmp_path, plane):
    (tmp_path / "listed.py").write_text(PROGRAM.replace("return dt.Training(", "return _list(", 1) + LISTED)
    with pytest.raises(TrainingError, match=r"3 of 3 were not.*batches of type list have none"):
        dt.select(f"{tmp_path / 'listed.py'}:plane", fraction=0.5, store=tmp_path / "store", **QUICK)
    with pytest.raises(DovetailError, match=r"0.02 of 90 leaves 2 for 3 classes. Give at least 0.033"):
        dt.select(plane, fraction=0.02, store=tmp_path / "store", **QUICK)


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
