"""Which segments are on the device: the furthest goes first, what is in use stays, and nothing is overwritten early.

Streams are played by lists of work that is done in any order that their waits allow, as a device might.
"""

import dataclasses
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dovetail.train.spill.lanes import Arena, Slot
from dovetail.train.spill.segment_streamer import Itinerary, Streamer
from dovetail.train.spill.segments import LiveSegment, cut
from tests.train.spill.towers import CPU, Tower, spilled, training

SEGMENTS = 5


# The order of a step


def segments(count: int = SEGMENTS) -> list[LiveSegment]:
    """Of one size; each one's travelling values are its number."""
    model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(count)))
    found = cut(model, limit_bytes=64, fixed_bytes=0, precision="fp32", device=CPU)
    assert len(found) == count
    for segment in found:
        segment.travel = torch.full((segment.travel_bytes // 4,), float(segment.index)).view(torch.uint8)
    return found


orders = st.lists(st.integers(0, SEGMENTS - 1), max_size=12)


@given(last=orders, now=st.integers(0, 12))
def test_the_distance_is_how_many_entries_until_the_next_use(last: list[int], now: int) -> None:
    all_of_them, itinerary = segments(), Itinerary()
    for number in last:
        itinerary.enter(all_of_them[number])
    itinerary.end_step()
    done = last[: min(now, len(last))]
    for number in done:
        itinerary.enter(all_of_them[number])
    coming = last[len(done) :] + last
    for segment in all_of_them:
        if segment.index in last:
            assert itinerary.distance(segment) == coming.index(segment.index)
        else:  # never used: further than all that are
            assert all(itinerary.distance(segment) > itinerary.distance(all_of_them[other]) for other in last)
    assert [segment.index for segment in itinerary.ahead(3)] == last[len(done) : len(done) + 3]
    assert itinerary.remaining() == len(last) - len(done)


@given(first=orders, second=orders)
def test_a_turn_forgets_all_but_the_step_before(first: list[int], second: list[int]) -> None:
    all_of_them = segments()
    old, new = Itinerary(), Itinerary()
    for number in first:
        old.enter(all_of_them[number])
    old.end_step()
    for itinerary in (old, new):
        for number in second:
            itinerary.enter(all_of_them[number])
        itinerary.end_step()
    assert old.ahead(99) == new.ahead(99)
    assert [old.distance(segment) for segment in all_of_them] == [new.distance(segment) for segment in all_of_them]


def test_a_step_that_goes_on_longer_than_the_last_has_nothing_ahead() -> None:
    all_of_them, itinerary = segments(), Itinerary()
    itinerary.enter(all_of_them[0])
    itinerary.end_step()
    for segment in all_of_them:
        itinerary.enter(segment)
    assert itinerary.ahead(3) == []
    assert itinerary.remaining() == 0


# Coming and going


@dataclasses.dataclass(eq=False)
class Moment:
    """So much of a stream's work."""

    lanes: "LazyLanes"
    stream: str
    place: int

    def query(self) -> bool:
        return self.lanes.done[self.stream] >= self.place

    def synchronize(self) -> None:
        self.lanes.work(until=self)


class LazyLanes:
    """Streams on which nothing is done until it is asked for, and then in any order that the waits allow."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self.queues: dict[str, list[tuple[list[Moment], Callable[[], Any]]]] = {"up": [], "down": [], "compute": []}
        self.done = dict.fromkeys(self.queues, 0)

    def up(self, target: torch.Tensor, source: torch.Tensor, *, after: Iterable[Any] = ()) -> Moment:
        return self._put("up", list(after), lambda: target.copy_(source))

    def down(self, target: torch.Tensor, source: torch.Tensor) -> Moment:
        return self._put("down", [self.mark()], lambda: target.copy_(source))

    def mark(self) -> Moment:
        return Moment(self, "compute", len(self.queues["compute"]))

    def follow(self, mark: Any) -> None:
        self._put("compute", [mark], lambda: None)

    def compute(self, action: Callable[[], Any]) -> None:
        self._put("compute", [], action)

    def work(self, until: Moment | None = None) -> None:
        """Do all there is, or until a moment is past."""
        while until is None or not until.query():
            able = [name for name, queue in self.queues.items() if self._is_able(name, queue)]
            if until is None and all(self.done[name] == len(queue) for name, queue in self.queues.items()):
                return
            assert able, "streams wait for each other"
            name = self._random.choice(able)
            self.queues[name][self.done[name]][1]()
            self.done[name] += 1

    def _is_able(self, name: str, queue: list[tuple[list[Moment], Callable[[], Any]]]) -> bool:
        return self.done[name] < len(queue) and all(mark.query() for mark in queue[self.done[name]][0])

    def _put(self, stream: str, after: list[Moment], action: Callable[[], Any]) -> Moment:
        self.queues[stream].append((after, action))
        return Moment(self, stream, len(self.queues[stream]))


class NoUpdates:
    """No segment waits for the host, but for those named."""

    def __init__(self) -> None:
        self.waiting: set[LiveSegment] = set()

    def finish(self, segment: LiveSegment) -> None:
        self.waiting.discard(segment)

    def is_done(self, segment: LiveSegment) -> bool:
        return segment not in self.waiting


def streamer(slots: int, *, distances: dict[int, int] | None = None, seed: int = 0) -> tuple[Streamer, LazyLanes, Any]:
    lanes, updates = LazyLanes(seed), NoUpdates()
    found = Streamer(
        lanes=lanes,
        updates=updates,  # type: ignore[arg-type]
        device=CPU,
        distance=lambda segment: (distances or {}).get(segment.index, segment.index),
    )
    found.travel = Arena(slots, slot=64, device=CPU)
    found.gradients = Arena(2, slot=64, device=CPU)
    return found, lanes, updates


def is_here(segment: LiveSegment, found: Streamer) -> bool:
    return found.travel.holds(segment.entries[0].leaf.data)


def look(lanes: LazyLanes, segment: LiveSegment, wrong: list[str]) -> None:
    """Computing reads the segment where its leaf is now; what it finds when it comes to it must be the segment's."""
    seen = segment.entries[0].leaf.data

    def read() -> None:
        if not bool((seen == float(segment.index)).all()):
            wrong.append(f"{segment.index} was {seen.flatten()[0]}")

    lanes.compute(read)


actions = st.lists(
    st.tuples(st.sampled_from(["enter", "leave", "touch", "prefetch", "discard"]), st.integers(0, SEGMENTS - 1)),
    max_size=40,
)


@settings(max_examples=150)
@given(
    script=actions,
    slots=st.integers(1, 4),
    seed=st.integers(0, 1 << 16),
    distances=st.permutations(range(SEGMENTS)),
)
def test_computing_sees_its_weights_however_the_streams_progress(
    script: list[tuple[str, int]], slots: int, seed: int, distances: list[int]
) -> None:
    found, lanes, _ = streamer(slots, distances=dict(enumerate(distances)), seed=seed)
    all_of_them, pinned, touched, wrong = segments(), set(), set(), []
    for action, number in script:
        segment = all_of_them[number]
        if action == "enter" and number not in pinned and number not in touched and len(pinned) < slots:
            found.enter(segment)
            pinned.add(number)
            look(lanes, segment, wrong)
        elif action == "leave" and number in pinned | touched:
            found.leave(segment, held=number in pinned)
            pinned.discard(number)
            touched.discard(number)
        elif action == "touch" and number not in pinned and len(pinned) < slots:
            found.touch(segment)
            touched.add(number)
            look(lanes, segment, wrong)
        elif action == "prefetch":
            found.prefetch(segment)
        elif action == "discard" and number not in pinned:
            found.discard(segment)
            touched.discard(number)
        assert all(is_here(all_of_them[held], found) for held in pinned)
        assert sum(is_here(each, found) for each in all_of_them) <= slots
    lanes.work()
    assert not wrong


@settings(max_examples=60)
@given(sizes=st.lists(st.integers(1, 3), max_size=10), seed=st.integers(0, 1 << 16))
def test_gradients_land_as_they_were_however_the_streams_progress(sizes: list[int], seed: int) -> None:
    found, lanes, _ = streamer(1, seed=seed)
    there = []
    for number, at_once in enumerate(sizes):  # more than there are slots for is rare, and allocated for
        slots = [found.borrow(64) for _ in range(at_once)]
        assert len({slot.bytes.data_ptr() for slot in slots}) == at_once
        for place, slot in enumerate(slots):
            host = torch.zeros(64, dtype=torch.uint8)
            there.append((10 * number + place, host))
            lanes.compute(lambda slot=slot, value=10 * number + place: slot.bytes[:64].fill_(value))
            found.give_back(slot, lanes.down(host, slot.bytes[:64]))
    lanes.work()
    assert all(bool((host == value).all()) for value, host in there)


def test_a_slot_is_overwritten_only_after_the_marks_it_was_given() -> None:
    found, lanes, _ = streamer(1)
    first, second, *_ = segments()
    found.enter(first)
    arrived = lanes.done["up"] + 1
    lanes.compute(lambda: None)
    found.leave(first)
    used = lanes.mark()
    lanes.compute(lambda: None)  # later work must not delay the next copy
    found.enter(second)
    waits, _ = lanes.queues["up"][arrived]
    assert [(mark.stream, mark.place) for mark in waits] == [("compute", used.place)]


@given(distances=st.permutations(range(SEGMENTS)), here=st.integers(1, SEGMENTS - 1))
def test_the_segment_whose_next_use_is_furthest_goes_first(distances: list[int], here: int) -> None:
    found, _, _ = streamer(here, distances=dict(enumerate(distances)))
    all_of_them = segments()
    for segment in all_of_them[:here]:
        found.enter(segment)
        found.leave(segment)
    found.enter(all_of_them[-1])
    gone = [segment.index for segment in all_of_them[:here] if not is_here(segment, found)]
    assert gone == [max(range(here), key=lambda number: distances[number])]


def test_what_is_in_use_never_goes() -> None:
    found, _, _ = streamer(2, distances={0: 99, 1: 1, 2: 2, 3: 3})
    near, far, other, more, *_ = segments()
    found.enter(near)  # the furthest, but in use
    found.enter(far)
    found.leave(far)
    found.enter(other)
    assert is_here(near, found)
    assert not is_here(far, found)
    with pytest.raises(torch.OutOfMemoryError, match=r"streaming room of 1.0 KiB; all of it is in use"):
        found.enter(more)
    assert is_here(near, found)
    assert is_here(other, found)


def test_a_segment_entered_twice_stays_until_it_was_left_twice() -> None:
    found, _, _ = streamer(1)
    first, second, *_ = segments()
    found.enter(first)
    found.enter(first)
    found.leave(first)
    assert not found.prefetch(second)
    found.leave(first)
    found.enter(second)
    assert not is_here(first, found)


@given(distances=st.permutations(range(SEGMENTS)), slots=st.integers(1, SEGMENTS - 1))
def test_prefetching_lets_nothing_go_that_is_needed_sooner(distances: list[int], slots: int) -> None:
    found, _, _ = streamer(slots, distances=dict(enumerate(distances)))
    all_of_them = segments()
    for segment in all_of_them[:slots]:
        found.enter(segment)
        found.leave(segment)
    wanted = all_of_them[-1]
    furthest = max(distances[:slots])
    assert found.prefetch(wanted) == (furthest > distances[wanted.index])
    assert is_here(wanted, found) == (furthest > distances[wanted.index])
    for segment in all_of_them[:slots]:
        assert is_here(segment, found) or distances[segment.index] == furthest


def test_prefetching_waits_for_updates_and_entering_waits_itself() -> None:
    found, _, updates = streamer(2)
    first, *_ = segments()
    updates.waiting.add(first)
    assert not found.prefetch(first)
    assert found.brought_bytes == 0
    found.enter(first)
    assert not updates.waiting
    assert found.brought_bytes == first.travel_bytes


def test_what_is_there_already_is_not_brought_again() -> None:
    found, _, _ = streamer(2)
    first, *_ = segments()
    assert found.prefetch(first)
    assert found.prefetch(first)
    found.enter(first)
    found.leave(first)
    found.touch(first)
    assert found.brought_bytes == first.travel_bytes


def test_a_kept_segment_takes_no_slot() -> None:
    found, _, _ = streamer(1)
    first, second, *_ = segments()
    first.kept = True
    assert found.prefetch(first)
    found.enter(first)
    found.enter(second)
    assert found.brought_bytes == second.travel_bytes


def test_what_was_let_go_is_no_number() -> None:
    found, lanes, _ = streamer(1)
    first, *_ = segments()
    found.enter(first)
    lanes.work()
    assert not first.entries[0].leaf.isnan().any()
    found.leave(first)
    found.discard(first)
    assert first.entries[0].leaf.isnan().all()
    assert first.entries[0].leaf.untyped_storage().nbytes() == 4  # of one element, whatever its shape


@settings(max_examples=30)
@given(start=st.integers(0, 2), stop=st.integers(3, 4), moves=st.booleans())
def test_what_autograd_keeps_is_found_again_wherever_the_segment_is(start: int, stop: int, moves: bool) -> None:
    found, lanes, _ = streamer(2)
    first, second, third, *_ = segments()
    first.travel = torch.arange(first.travel_bytes // 4, dtype=torch.float32).view(torch.uint8)
    found.enter(first)
    lanes.work()
    part = first.entries[0].leaf.detach()[start:stop].t()
    expected, saved = part.clone(), found.pack(part)
    assert not isinstance(saved, torch.Tensor)
    found.leave(first)
    found.discard(first)
    for other in (second, third)[: 1 + moves]:
        found.enter(other)
        found.leave(other)
    found.touch(first)
    lanes.work()
    assert torch.equal(found.unpack(saved), expected)
    elsewhere = torch.ones(2)
    kept = found.pack(elsewhere)
    assert isinstance(kept, torch.Tensor)
    assert kept.data_ptr() == elsewhere.data_ptr()


def test_a_sparse_tensor_is_kept_as_it_is() -> None:
    found, _, _ = streamer(1)
    sparse = torch.eye(2).to_sparse()
    kept = found.pack(sparse)
    assert isinstance(kept, torch.Tensor)
    assert torch.equal(kept.to_dense(), torch.eye(2))


def test_discarding_all_ends_all_uses() -> None:
    found, _, _ = streamer(2)
    all_of_them = segments()
    found.enter(all_of_them[0])
    found.touch(all_of_them[1])
    found.discard_all(all_of_them)
    assert not any(is_here(segment, found) for segment in all_of_them)
    assert _taken(found.travel) is not None
    assert _taken(found.travel) is not None


def _taken(arena: Arena) -> Slot | None:
    return arena.take()


# In a session


@settings(max_examples=6, deadline=None)
@given(layers=st.integers(2, 9), depth=st.integers(1, 5))
def test_a_step_brings_each_segment_once_forward_and_those_that_went_once_more(layers: int, depth: int) -> None:
    session = spilled(lambda: training(Tower(layers)), depth=depth)
    count, size = len(session.segments), session.segments[0].travel_bytes
    assert count == layers + 1
    assert all(segment.travel_bytes == size for segment in session.segments)
    brought = [_brought(session) for _ in range(4)]
    session.close()
    # All are updated, so forward brings all. At the turn the last `depth` are still there, and backward of the first
    # does not read its weights, for its inputs have no gradients.
    assert brought[2:] == 2 * [size * (count + max(0, count - 1 - depth))]


def test_evaluating_costs_the_next_steps_no_copies() -> None:
    held_out = torch.randn(8, 8)
    session = spilled(
        lambda: training(Tower(8), evaluate=lambda model: {"mean": float(model(held_out).mean())}), depth=3
    )
    steady = [_brought(session) for _ in range(3)][-1]
    session.evaluate()
    found = [_brought(session) for _ in range(3)]
    session.close()
    assert all(brought <= steady for brought in found)


def _brought(session: Any) -> int:
    before = session._resources.streamer.brought_bytes
    session.advance()
    return int(session._resources.streamer.brought_bytes - before)
