"""Which tasks a user means."""

import pytest

from dovetail.metrics.task_addresses import match_task, match_tasks, shorten_ids
from dovetail.vocabulary import DovetailError

ROWS = [
    {"task": "net rate=0.1 width=8", "id": "aaaa1111", "parameters": {"rate": 0.1, "width": 8, "kind": "adam"}},
    {"task": "net rate=0.15 width=16", "id": "aaaa2222", "parameters": {"rate": 0.15, "width": 16, "kind": "sgd"}},
    {"task": "net rate=0.001 width=8", "id": "bbbb3333", "parameters": {"rate": 0.001, "width": 8, "deep": True}},
    {"task": "other [x]", "id": "cccc4444", "parameters": {}},
]


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        (["net rate=0.1 width=8"], [0]),
        (["other [x]"], [3]),
        (["bbbb"], [2]),
        (["aaaa2"], [1]),
        (["net*"], [0, 1, 2]),
        (["*width=8"], [0, 2]),
        (["rate=0.1*"], [0, 1]),
        (["rate=0.1"], [0]),
        (["rate=1e-3"], [2]),
        (["rate=0.1*,width=16"], [1]),
        (["kind=*"], [0, 1]),
        (["deep=True"], [2]),
        (["*"], [0, 1, 2, 3]),
        (["other*", "rate=0.1", "net rate=0.1 width=8"], [0, 3]),
    ],
)
def test_what_words_mean(words, numbers):
    assert match_tasks(words, ROWS) == [ROWS[number] for number in numbers]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("net rate=0.2 width=8", r"must be one of .*, got .* Did you mean 'net rate=0.1 width=8'\?"),
        ("rate=7", "must be one of"),
        ("aaaa", "must begin the id of one task; it begins those of .*rate=0.15.*Give more of it"),
        ("aa", "must be one of"),
        ("deep=1", "must be one of"),
        ("", "must be one of"),
    ],
)
def test_what_means_nothing_or_too_much_is_refused(word, message):
    with pytest.raises(DovetailError, match=message):
        match_tasks([word], ROWS)


def test_one_task_where_one_is_wanted():
    assert match_task("cccc", ROWS) is ROWS[3]
    with pytest.raises(DovetailError, match=r"'net\*' must name one task; it names"):
        match_task("net*", ROWS)


def test_short_ids_tell_apart():
    assert shorten_ids([row["id"] for row in ROWS]) == ["aaaa1", "aaaa2", "bbbb3", "cccc4"]
    assert shorten_ids([]) == []
    assert shorten_ids(["same", "same"]) == ["same", "same"]


def test_a_refusal_shows_no_secret():
    rows = [{"task": f"run-hunter22 {n}", "id": f"aaaa{n}", "parameters": {"pwd": "hunter22"}} for n in range(2)]
    for word in ("other", "aaaa", "run*"):
        with pytest.raises(DovetailError) as refusal:
            match_task(word, rows)
        assert "run-***" in str(refusal.value)
        assert "hunter22" not in str(refusal.value)
