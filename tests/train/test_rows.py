"""A dropout that sees some rows of a batch falls on them as on the whole batch, however the batch lies in memory."""

import pytest
import torch
from torch import nn

from dovetail.train.rows import Rows, RowwiseDropout

LAYOUTS = {
    "rows first": lambda total: torch.ones(total, 7, 4),
    "words first": lambda total: torch.ones(7, total, 4).transpose(0, 1),  # as recurrent layers give them
    "channels last": lambda total: torch.ones(total, 4, 3, 5).to(memory_format=torch.channels_last),
    "one word": lambda total: torch.ones(1, total, 4).transpose(0, 1),
}


@pytest.mark.parametrize("dropout", [nn.Dropout, nn.Dropout2d])
@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_drop_what_the_whole_drops(layout, size, dropout):
    total = 5
    if dropout is nn.Dropout2d and layout != "channels last":
        pytest.skip("drops channels of pictures")
    torch.manual_seed(3)
    whole = dropout(0.5)(LAYOUTS[layout](total))
    model = nn.Sequential(dropout(0.5))
    rowwise = RowwiseDropout(model, generator=torch.default_generator)
    parts = []
    for number in range(size):
        rowwise.rows = Rows.of(number, size, total=total)
        torch.manual_seed(3)
        parts.append(model(LAYOUTS[layout](rowwise.rows.count)))
    assert torch.equal(torch.cat(parts), whole)
