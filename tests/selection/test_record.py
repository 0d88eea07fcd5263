"""A selection goes to a file and back, and is used with its own dataset only."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import dovetail as dt
from dovetail.selection.record import SelectionTrial
from dovetail.vocabulary import DovetailError, ProgramError

TRIAL = SelectionTrial(method="ccs", strength=0.1, scores=(0.9, 0.8))
CHOSEN = dt.Selection(
    program="digits.py:digits",
    fraction=0.5,
    count=6,
    method="ccs",
    strength=0.1,
    indices=(1, 4, 5),
    weights=(1, 3, 1),
    metric="accuracy",
    trials=(TRIAL,),
)


def test_it_comes_back_equal(tmp_path):
    assert dt.Selection.open(CHOSEN.save(tmp_path / "chosen.json")) == CHOSEN


def test_datasets_and_feeds_take_it_with_its_weights():
    data = TensorDataset(torch.arange(6))
    (batch,) = next(iter(DataLoader(CHOSEN.of(data), batch_size=9)))
    assert batch.tolist() == [1, 4, 4, 4, 5]
    feed = dt.feed(data).select(CHOSEN).map(lambda item: item[0]).batch(9)
    assert [each.tolist() for each in feed] == [[1, 4, 4, 4, 5]]
    assert len(dt.feed(data).select(CHOSEN).batch(2)) == 3


def test_workers_read_a_selected_feed_alike():
    feed = dt.feed(range(6)).select(CHOSEN).shuffle(9).map(lambda number: number * number).batch(2)
    with feed.open() as running:
        assert [each.tolist() for each in running] == [each.tolist() for each in feed]


def test_another_dataset_is_refused():
    with pytest.raises(DovetailError, match=r"of 6 examples; this one has 5. Select again"):
        CHOSEN.of(range(5))


@pytest.mark.parametrize("numbers", [[], [3, 9], [-1]])
def test_numbers_that_a_feed_has_not_are_refused(numbers):
    with pytest.raises(ProgramError, match="numbers of the source's 6 items"):
        dt.feed(range(6)).select(numbers)


def test_a_stream_has_no_numbers():
    with pytest.raises(ProgramError, match="select must have a source that reads items by number"):
        dt.feed({1: 2}.keys()).select([0])


@pytest.mark.parametrize("content", ["", "[]", '{"program": 1}'])
def test_a_file_that_is_none_is_refused(tmp_path, content):
    (tmp_path / "chosen.json").write_text(content)
    with pytest.raises(DovetailError, match=r"a selection must be read from .*chosen.json; found.*dovetail select -o"):
        dt.Selection.open(tmp_path / "chosen.json")


def test_a_file_that_cannot_be_written_is_said(tmp_path):
    with pytest.raises(DovetailError, match="a selection must be written to"):
        CHOSEN.save(tmp_path / "nowhere" / "chosen.json")
