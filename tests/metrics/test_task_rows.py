"""Rows of tasks in the order, with the metrics and in the form that is asked for."""

import csv
import io
import math

import pytest

from dovetail.metrics.task_rows import choose_metrics, sort_rows, to_csv
from dovetail.vocabulary import DovetailError, FrozenDict

ROWS = [
    {"task": "a", "step": 5, "parameters": {"rate": 0.1, "kind": "sgd"}, "metrics": {"loss": 3.0, "accuracy": 0.5}},
    {"task": "b", "step": 9, "parameters": {"rate": "auto", "kind": None}, "metrics": {"loss": math.nan}},
    {"task": "c", "step": 7, "parameters": {"rate": 0.01, "sizes": (1, 2)}, "metrics": {"loss": 1.0, "accuracy": 0.9}},
    {"task": "d", "step": 7, "parameters": FrozenDict(), "metrics": {}},
]


@pytest.mark.parametrize(
    ("by", "order"),
    [
        (None, "abcd"),
        ("step", "acdb"),
        ("-step", "bcda"),
        ("loss", "cabd"),
        ("-loss", "acbd"),
        ("rate", "cabd"),
        ("-accuracy", "cabd"),
        ("sizes", "cabd"),
    ],
)
def test_the_order_with_what_is_missing_last(by, order):
    assert "".join(row["task"] for row in sort_rows(ROWS, by)) == order


def test_what_is_not_there_is_refused_with_what_is():
    with pytest.raises(DovetailError, match=r"--sort must name one of .*, got 'acuracy'; did you mean 'accuracy'\?"):
        sort_rows(ROWS, "-acuracy")
    with pytest.raises(DovetailError, match="--metrics must name one of accuracy, loss, got 'los'"):
        choose_metrics(ROWS, ["los"])
    assert sort_rows([], "anything") == []
    assert choose_metrics(ROWS[3:], ["later"]) == ["later"]


def test_metrics_are_chosen_by_name_in_the_order_given():
    assert choose_metrics(ROWS, ["accuracy,loss"]) == choose_metrics(ROWS, ["accuracy", "loss"]) == ["accuracy", "loss"]
    many = [{"metrics": {f"m{n}": 1.0 for n in range(9)}}]
    assert len(choose_metrics(many, None)) == 5
    assert len(choose_metrics(many, ["all"])) == 9


def test_csv_has_every_parameter_and_metric():
    rows = list(csv.DictReader(io.StringIO(to_csv(ROWS))))
    assert rows[0] | {"sizes": ""} == rows[0]
    assert [row["loss"] for row in rows] == ["3.0", "nan", "1.0", ""]
    assert rows[2]["sizes"] == "[1, 2]"
    assert list(rows[0]) == ["task", "step", "rate", "kind", "loss", "accuracy", "sizes"]
