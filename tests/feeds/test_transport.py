"""What arrives is what was sent, in memory of its own."""

import os

import numpy
import pytest
import torch

from dovetail.feeds.transport import Channel, decode, encode
from tests.feeds.feeds import equal

VALUES = [
    None,
    [1, "a", b"b", {"c": (2.5, True)}],
    torch.arange(100_000),
    {"x": torch.rand(300, 400), "y": numpy.arange(50_000, dtype=numpy.uint8), "z": torch.tensor(3)},
    torch.rand(400, 300).t(),
    torch.rand(50_000).to(torch.bfloat16),
    torch.empty(0, 3),
    [torch.full((10_000,), number) for number in range(2000)],
    numpy.asfortranarray(numpy.arange(60_000.0).reshape(200, 300)),
    torch.ones(3, dtype=torch.bool),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_arrive_as_they_were(value):
    assert equal(decode(*encode(value)), value)
    ours, theirs = Channel.pair()
    with ours, theirs:
        import threading

        sender = threading.Thread(target=ours.send, args=(value,))
        sender.start()
        found = theirs.receive()
        sender.join()
    assert equal(found, value)


def test_what_arrives_can_be_written_to_and_is_nobody_elses():
    ours, theirs = Channel.pair()
    value = torch.zeros(100_000)
    with ours, theirs:
        ours.send(value)
        found = theirs.receive()
    found += 1
    assert value.sum() == 0
    assert found.sum() == 100_000


def test_no_file_stays_open():
    ours, theirs = Channel.pair()
    with ours, theirs:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(50):
            ours.send(torch.zeros(100_000))
            theirs.receive()
        assert len(os.listdir("/proc/self/fd")) == before


def test_the_other_end_is_gone():
    ours, theirs = Channel.pair()
    theirs.close()
    with ours, pytest.raises((EOFError, ConnectionError)):
        ours.receive()


def test_tensors_lie_in_memory_as_they_did():
    pictures = torch.randn(2, 3, 4, 5)
    for each in (pictures.contiguous(memory_format=torch.channels_last), pictures.transpose(1, 2), pictures[:, 1:2]):
        found = decode(*encode(each))
        assert torch.equal(found, each)
        assert found.stride() == (each if each.shape[1] != 1 else each.contiguous()).stride()
