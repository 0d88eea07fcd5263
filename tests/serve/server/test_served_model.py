import pytest
import torch
from torch import nn

from dovetail.serve.server.served_model import inputs_of, required_count
from dovetail.vocabulary import DovetailError


class TwoInputs(nn.Module):
    def forward(self, numbers, ids, scale=None):
        return numbers + ids


NUMBERS, IDS, LABELS = torch.ones(4, 3), torch.zeros(4, 2, dtype=torch.int64), torch.zeros(4)


@pytest.mark.parametrize("batch", [(NUMBERS, IDS, LABELS), [[NUMBERS, IDS], LABELS], ((NUMBERS, IDS), LABELS)])
def test_a_model_of_several_inputs_is_given_all_of_them(batch):
    numbers, ids = inputs_of(batch, count=required_count(TwoInputs()))
    assert (numbers.shape, ids.shape) == ((4, 3), (4, 2))


@pytest.mark.parametrize("batch", [(NUMBERS, LABELS), (NUMBERS, LABELS, LABELS), [(NUMBERS,), LABELS], NUMBERS])
def test_a_model_of_one_input_is_given_the_first(batch):
    assert inputs_of(batch, count=required_count(nn.Linear(3, 2))).shape == (4, 3)


def test_what_is_no_array_of_numbers_is_refused():
    with pytest.raises(DovetailError, match="arrays of numbers, of types that NumPy has"):
        inputs_of({"text": ["a", "b"], "labels": LABELS})
