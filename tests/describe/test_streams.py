import math
from pathlib import Path

import pytest

from dovetail.describe.streams import Stream, read_stream
from dovetail.vocabulary import InvalidWorkload

HEAD = "task,at_seconds,steps,count,weight,deadline_seconds,model,v100,k80\n"


def read(folder: Path, *lines: str, head: str = HEAD) -> Stream:
    path = folder / "trace.csv"
    path.write_text(head + "\n".join(lines) + "\n")
    return read_stream(path)


def test_tasks_with_the_same_rates_are_one_family(tmp_path: Path) -> None:
    found = read(tmp_path, "a,0,100,1,1,,,10,2", "b,60,50,1,2,3600,,10,2", "c,0,9,4,,,,3,")
    a, b, c = found.arrivals
    assert a.family == b.family != c.family
    assert (b.at_seconds, b.steps, b.weight, b.deadline_seconds) == (60.0, 50, 2.0, 3600.0)
    assert (a.weight, a.deadline_seconds, c.weight) == (1.0, math.inf, 1.0)
    assert [(o.families[0], o.kind, o.count, o.step_seconds) for o in found.options] == [
        (a.family, "v100", 1, (0.1,)),
        (a.family, "k80", 1, (0.5,)),
        (c.family, "v100", 4, (1 / 3,)),
    ]


def test_a_model_is_shown_and_may_have_two_sets_of_rates(tmp_path: Path) -> None:
    found = read(tmp_path, "a,0,100,1,1,,bert,10,2", "b,0,100,1,1,,bert,9,2")
    assert len({each.family for each in found.arrivals}) == 2
    assert all("bert" in each.family for each in found.arrivals)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a,0,100,1,1,,,0,0", "'a' must have a rate above 0 on some kind"),
        ("a,0,100,1,1,,,,", "'a' must have a rate above 0 on some kind"),
        ("a,0,0,1,1,,,1,1", "steps must be a whole number of at least 1, got '0'"),
        ("a,0,1.5,1,1,,,1,1", "steps must be a whole number"),
        ("a,-1,10,1,1,,,1,1", "at_seconds must be a number of at least 0, got '-1'"),
        ("a,soon,10,1,1,,,1,1", "at_seconds must be a number of at least 0, got 'soon'"),
        ("a,0,10,0,1,,,1,1", "count must be a whole number of at least 1"),
        ("a,0,10,1,1,-5,,1,1", "the deadline of 'a' must be later than its arrival"),
        ("a,0,10,1,1,0,,1,1", "it is past already"),
        ("a,0,10,1,1,,,-3,1", "v100 must be a number of at least 0"),
        ("a,0,10,1,1,,,nan,1", "v100 must be a number"),
        (",0,10,1,1,,,1,1", "a task must have a name"),
    ],
)
def test_lines_that_cannot_be(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(InvalidWorkload, match=words) as refused:
        read(tmp_path, "first,0,1,1,1,,,1,1", line)
    assert "line 3 of" in str(refused.value)


def test_two_tasks_with_one_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidWorkload, match="'a' is there more than once"):
        read(tmp_path, "a,0,1,1,1,,,1,1", "a,9,1,1,1,,,1,1")


@pytest.mark.parametrize(
    ("head", "words"),
    [("task,steps,v100\n", "at_seconds is missing"), ("task,at_seconds,steps\n", "a kind is missing")],
)
def test_columns_that_are_missing(tmp_path: Path, head: str, words: str) -> None:
    with pytest.raises(InvalidWorkload, match=words):
        read(tmp_path, head=head)


@pytest.mark.parametrize("load", [0.0, -1.0, math.inf, math.nan])
def test_loads_that_cannot_be(tmp_path: Path, load: float) -> None:
    with pytest.raises(InvalidWorkload, match="a load must be a number above 0"):
        read(tmp_path, "a,0,1,1,1,,,1,1").faster(load)
