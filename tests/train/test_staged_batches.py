"""Batches that are copied ahead: in order, none lost, and the position is that of what was given."""

import threading
import time

import pytest
import torch

from dovetail.feeds import feed
from dovetail.train.staged_batches import AHEAD, StagedBatches, _is_plain
from dovetail.vocabulary import ProgramError

CPU = torch.device("cpu")


def numbers(batches):
    return [batch.tolist() for batch in batches]


def half(number):
    if number == 7:
        raise ValueError("seven")
    return number / 2


def wait_until(condition):
    for _ in range(500):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it never came")


def test_what_was_copied_ahead_is_not_what_was_given():
    definition = feed(range(12), seed=3).shuffle(12).map(float).batch(2)
    with definition.open() as running:
        plain = [numbers(running), numbers(running)]
    with definition.open() as running:
        batches = iter(staged := StagedBatches(running, device=CPU))
        given = [next(batches).tolist()]
        wait_until(running.is_ready)
        given.append(next(batches).tolist())  # and two more were taken, if they were there
        state = staged.state_dict()
    assert given == plain[0][:2]
    with definition.open() as running:
        staged = StagedBatches(running, device=CPU)
        staged.load_state_dict(state)
        assert numbers(staged) == plain[0][2:]
        assert numbers(staged) == plain[1]


def test_an_item_that_fails_does_so_when_its_batch_is_asked_for():
    with feed(range(12)).map(half).batch(2).open() as running:
        batches = iter(StagedBatches(running, device=CPU))
        assert [next(batches).tolist() for _ in range(3)] == [[0.0, 0.5], [1.0, 1.5], [2.0, 2.5]]
        with pytest.raises(ProgramError, match="item 7"):
            next(batches)


class Noting:
    """Batches that note in which threads they are asked for something."""

    definition = None

    def __init__(self):
        self.threads, self.given = set(), 0

    def _note(self):
        self.threads.add(threading.current_thread())

    def __len__(self):
        return 8

    def __iter__(self):
        while self.given < 8:
            self._note()
            self.given += 1
            yield torch.tensor(self.given)

    def is_ready(self):
        self._note()
        return self.given < 8

    def state_dict(self):
        self._note()
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


def stagers():
    return [each for each in threading.enumerate() if each.name.startswith("staging")]


def test_only_the_thread_that_takes_batches_asks_for_them():
    noting = Noting()
    batches = iter(staged := StagedBatches(noting, device=CPU))
    given = [next(batches).item(), next(batches).item()]
    assert noting.given == 2 + AHEAD
    assert staged.state_dict() == {"given": 2}
    assert noting.threads == {threading.current_thread()}
    assert [*given, *(batch.item() for batch in batches)] == [*range(1, 9)]


@pytest.mark.parametrize("way", ["closed", "ended", "failed"])
def test_the_thread_that_copies_ends_with_the_iteration(way):
    batches = iter(StagedBatches(Noting(), device=CPU))
    next(batches)
    assert stagers()
    if way == "closed":
        batches.close()
    elif way == "ended":
        list(batches)
    else:
        with pytest.raises(KeyError):
            batches.throw(KeyError("a step"))
    assert not stagers()


def test_nothing_is_ready_before_it_is_read():
    with feed(range(12)).batch(2).open() as running:
        assert not running.is_ready()
        batches = iter(running)
        next(batches)
        wait_until(running.is_ready)


def test_what_holds_tensors_in_its_own_way_is_left_to_itself():
    class Own:
        def to(self, device, non_blocking=False):
            return self

    assert _is_plain({"x": [torch.ones(1), 3, "text", None]})
    assert not _is_plain((torch.ones(1), Own()))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_device_the_bits_are_the_same():
    device = torch.device("cuda")
    images = torch.randn(200, 3, 64, 64)
    definition = feed(images, seed=1).shuffle(200).batch(8)
    with definition.open() as running:
        plain = [batch.clone() for batch in running]
    with definition.open() as running:
        sums = []
        for batch in StagedBatches(running, device=device):
            assert batch.device.type == "cuda"
            for _ in range(20):  # so that copies overtake what computes
                _ = torch.mm(torch.randn(1000, 1000, device=device), torch.randn(1000, 1000, device=device))
            sums.append(batch.clone())
    assert all(torch.equal(one.cpu(), other) for one, other in zip(sums, plain, strict=True))
