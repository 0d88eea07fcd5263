import pytest
import torch
from torch import nn

import dovetail as dt
from dovetail.serve.cascades.labelled import gather
from dovetail.serve.cascades.model_cascade import ModelCascade, make_cascade


class Slow(nn.Module):
    """The sign of the sum of the squares of all columns but the first, minus what is half of the rows; costly."""

    def __init__(self, turns: int) -> None:
        super().__init__()
        self.turns = turns

    def forward(self, rows):
        for _ in range(self.turns):
            torch.sort(rows, dim=1)
        score = 20 * rows[:, 0] + 5 * rows[:, 1]
        return torch.stack([-score, score], dim=1)


class Quick(nn.Module):
    def forward(self, rows):
        return torch.stack([-rows[:, 0], rows[:, 0]], dim=1)


def labelled(count, seed=0):
    rows = torch.randn(count, 50, generator=torch.Generator().manual_seed(seed))
    return gather((rows, (20 * rows[:, 0] + 5 * rows[:, 1] > 0).long()))


def test_what_is_sure_is_answered_by_the_cheap_model():
    models = {"slow": lambda: Slow(30), "quick": Quick, "slower": lambda: Slow(60)}
    cascade = make_cascade(models, "slow", labelled(8000), lose=0.01, confidence=0.95)
    assert [name for name, _ in cascade.stages] == ["quick"]
    assert 0 < cascade.expected_share < 0.9
    assert str(cascade).startswith("quick (from ")
    fresh = labelled(4000, seed=1)
    found = cascade.predict(fresh.inputs)
    assert cascade.asked["quick"] == 4000
    assert cascade.asked["slow"] < 2000
    assert (found != fresh.labels).float().mean() <= 0.01 + 3 * (0.01 / 4000) ** 0.5


def test_scores_are_those_of_the_stage_that_answers():
    cascade = ModelCascade([("quick", Quick(), 0.9)], ("slow", Slow(1)))
    rows = torch.tensor([[3.0, 0.0], [0.1, 0.1]])
    scores = cascade.scores(rows)
    assert torch.equal(scores[0], Quick()(rows)[0])
    assert torch.equal(scores[1], Slow(1)(rows)[1])


def test_plain_where_nothing_is_cheaper_or_rows_are_few():
    only = make_cascade({"slow": lambda: Slow(1)}, "slow", labelled(2000), lose=0.01, confidence=0.9)
    assert "no cheaper stage" in only.why_plain
    assert len(only.predict(labelled(10).inputs)) == 10
    few = make_cascade({"slow": lambda: Slow(1), "quick": Quick}, "slow", labelled(100), lose=0.01, confidence=0.9)
    assert "460 rows must be there to choose by and to calibrate with; there are 100" in few.why_plain
    assert "plain" in str(few)


def test_unlike_classes_are_refused():
    models = {"slow": lambda: Slow(1), "three": lambda: nn.Linear(50, 3)}
    with pytest.raises(dt.DovetailError, match="three has 3 and slow has 2"):
        make_cascade(models, "slow", labelled(2000), lose=0.01, confidence=0.9)


def test_rows_come_as_pairs_batches_and_by_name():
    rows, labels = torch.randn(6, 3), torch.arange(6) % 2
    for given in ((rows, labels), [(rows[:4], labels[:4]), [rows[4:], labels[4:]]], (rows.numpy(), labels.numpy())):
        found = gather(given)
        assert torch.equal(found.inputs, rows)
        assert torch.equal(found.labels, labels)
    named = gather([({"x": rows[:2]}, labels[:2]), ({"x": rows[2:]}, labels[2:])])
    assert torch.equal(named.take([5]).inputs["x"], rows[5:])
    several = gather([((rows, rows), labels)])
    assert torch.equal(several.take(slice(1, 3)).inputs[1], rows[1:3])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (7, "must be \\(inputs, labels\\) or batches"),
        ([], "there are none"),
        ([torch.ones(3)], "must be a pair of inputs and labels"),
        ((torch.ones(3, 2), torch.ones(2)), "3 rows and 2 labels"),
    ],
)
def test_rows_that_cannot_be_are_refused(given, message):
    with pytest.raises(dt.DovetailError, match=message):
        gather(given)


def test_a_model_must_score_classes():
    with pytest.raises(dt.DovetailError, match="a score for each class of each row; it gives \\(4, 2, 2\\)"):
        ModelCascade([], ("odd", nn.Unflatten(1, (2, 2)))).predict(torch.ones(4, 4))
