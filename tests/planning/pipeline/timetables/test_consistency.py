"""What would hang, lose work or mix up messages is found before it runs."""

import dataclasses

import pytest

from dovetail.planning.pipeline.timetables import TIMETABLES, Action, Timetable, check
from dovetail.vocabulary import InvalidRecord


def swapped(made: Timetable, rank: int, one: int, other: int) -> Timetable:
    actions = list(made.ranks[rank])
    actions[one], actions[other] = actions[other], actions[one]
    return replaced(made, rank, tuple(actions))


def replaced(made: Timetable, rank: int, actions: tuple[Action, ...]) -> Timetable:
    ranks = (*made.ranks[:rank], actions, *made.ranks[rank + 1 :])
    return dataclasses.replace(made, ranks=ranks)


MADE = TIMETABLES["1f1b"]([1, 1, 1], microbatches=4)


def test_a_cycle_is_told_rank_by_rank() -> None:
    # The first rank awaits backward 0 before it has sent what the last one needs for it.
    last_first = swapped(MADE, 2, 0, 2)  # forward 1 and backward 1 come before forward 0 and backward 0
    stuck = swapped(swapped(last_first, 2, 1, 3), 0, 1, 3)
    with pytest.raises(InvalidRecord, match=r"would hang: rank 0 waits at .* for rank 1 to do .*, rank 1 waits at"):
        check(stuck)


def test_backward_before_forward_hangs() -> None:
    with pytest.raises(InvalidRecord, match="would hang: rank 2 waits at backward 0 of stage 2 for rank 2"):
        check(swapped(MADE, 2, 0, 1))


def test_messages_are_awaited_as_they_are_sent() -> None:
    # Forwards 1 and 2 change places at the receiver only: possible with tags, and a mix-up without.
    gpipe = TIMETABLES["gpipe"]([1, 1], microbatches=3)
    with pytest.raises(InvalidRecord, match="order they are sent"):
        check(swapped(gpipe, 1, 1, 2))


def test_work_left_out_doubled_or_misplaced_is_named() -> None:
    with pytest.raises(InvalidRecord, match="microbatch 3 at stage 0"):
        check(replaced(MADE, 0, tuple(a for a in MADE.ranks[0] if a.microbatch != 3)))
    with pytest.raises(InvalidRecord, match="once for microbatch 0 at stage 0"):
        check(replaced(MADE, 0, (MADE.ranks[0][0], *MADE.ranks[0])))
    with pytest.raises(InvalidRecord, match="gives forward 0 of stage 0 to rank 1"):
        check(replaced(MADE, 1, (MADE.ranks[0][0], *MADE.ranks[1])))
    with pytest.raises(InvalidRecord, match="must be one of"):
        check(replaced(MADE, 0, (dataclasses.replace(MADE.ranks[0][0], operation="dance"), *MADE.ranks[0][1:])))


def test_backward_uses_the_weights_of_forward_and_none_that_are_not_made() -> None:
    newer = dataclasses.replace(MADE.ranks[2][1], version=1)
    with pytest.raises(InvalidRecord, match="weights that forward used"):
        check(replaced(MADE, 2, (MADE.ranks[2][0], newer, *MADE.ranks[2][2:])))
    future = tuple(dataclasses.replace(a, version=a.operation != "update") for a in MADE.ranks[2])
    with pytest.raises(InvalidRecord, match="version True after 0 updates"):
        check(replaced(MADE, 2, future))


@pytest.mark.parametrize("rank", [0, 1])
def test_replicas_make_the_same_updates_and_of_all_gradients(rank: int) -> None:
    made = TIMETABLES["stashing"]([2, 1], microbatches=4)
    check(made)
    actions = made.ranks[rank]
    with pytest.raises(InvalidRecord, match=r"same updates .* rank . makes \[0\] of \[0, 1\]"):
        check(replaced(made, rank, actions[:-1]))
    flushed = TIMETABLES["1f1b"]([2, 1], microbatches=4)
    early = (*flushed.ranks[rank][:-2], *flushed.ranks[rank][:-3:-1])
    with pytest.raises(InvalidRecord, match="ends with backward"):
        check(replaced(flushed, rank, early))
