"""Slots of an arena never overlap, and what is given back is handed on with its marks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dovetail.train.spill.lanes import ALIGNMENT, Arena, HostLanes, Slot, align

CPU = torch.device("cpu")
counts, sizes = st.integers(0, 6), st.integers(1, 3000)


@given(size=st.integers(0, 1 << 40))
def test_alignment_adds_less_than_one_unit(size: int) -> None:
    found = align(size)
    assert found % ALIGNMENT == 0
    assert size <= found < size + ALIGNMENT
    assert align(found) == found


@given(count=counts, slot=sizes)
def test_an_arena_takes_so_many_slots_and_no_more(count: int, slot: int) -> None:
    arena = Arena(count, slot=slot, device=CPU)
    assert arena.size == count * align(slot)
    taken = [arena.take() for _ in range(count)]
    assert None not in taken
    assert arena.take() is None


@given(count=counts, slot=sizes, order=st.lists(st.booleans(), max_size=40))
def test_slots_in_use_never_overlap(count: int, slot: int, order: list[bool]) -> None:
    arena, held = Arena(count, slot=slot, device=CPU), []
    for takes in order:
        if takes and (found := arena.take()) is not None:
            held.append(found)
        elif not takes and held:
            arena.give(held.pop(), [])
        for number, one in enumerate(held):
            one.bytes.fill_(number)
        assert all(bool((one.bytes == number).all()) for number, one in enumerate(held))
        assert all(len(one.bytes) >= slot for one in held)


def test_a_slot_comes_with_the_marks_it_was_given_back_with() -> None:
    arena, lanes = Arena(2, slot=8, device=CPU), HostLanes()
    first, second = _taken(arena), _taken(arena)
    assert first.marks == second.marks == []
    marks = [lanes.mark(), lanes.mark()]
    arena.give(second, marks)
    assert _taken(arena) is second
    assert second.marks is marks


def test_the_slot_that_was_given_back_longest_ago_comes_first() -> None:
    arena = Arena(3, slot=8, device=CPU)
    slots = [_taken(arena) for _ in range(3)]
    for number in (1, 0, 2):
        arena.give(slots[number], [])
    assert [_taken(arena) for _ in range(3)] == [slots[1], slots[0], slots[2]]


@given(dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.uint8]))
def test_all_of_it_can_be_seen_as_any_type(dtype: torch.dtype) -> None:
    arena = Arena(2, slot=100, device=CPU)
    typed = arena.view_as(dtype)
    assert typed.nbytes == arena.size
    assert arena.holds(typed)
    assert arena.view_as(dtype) is typed


def test_it_knows_what_lies_in_it() -> None:
    arena, other = Arena(2, slot=8, device=CPU), Arena(2, slot=8, device=CPU)
    slot = _taken(arena)
    assert arena.holds(slot.bytes[4:].view(torch.int32))
    assert not other.holds(slot.bytes)
    assert not arena.holds(torch.zeros(4))
    assert not Arena(0, slot=0, device=CPU).holds(torch.zeros(0))


@pytest.mark.parametrize("count", [0, 2])
def test_it_says_how_much_is_free(count: int) -> None:
    assert str(Arena(count, slot=512, device=CPU)) == ("0 B of 0 B free" if not count else "1.0 KiB of 1.0 KiB free")


def _taken(arena: Arena) -> Slot:
    found = arena.take()
    assert found is not None
    return found
