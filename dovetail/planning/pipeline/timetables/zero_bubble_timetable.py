"""Zero bubble: backward in two, so that gradients of weights, for which nobody waits, fill what would be idle.

ZB-H1 of Qi et al. (ICLR 2024): rank r begins with depth − r forwards, as in 1F1B, and puts the gradients of weights off
by r microbatches. So every rank holds depth microbatches, no more than the first one of 1F1B does; gradients of inputs
travel back without waiting for those of weights; and these fill the end, where 1F1B is idle.
"""

from collections.abc import Iterator, Sequence

from dovetail.planning.pipeline.timetables.actions import Action, Timetable, held_by, single


def zero_bubble(replicas: Sequence[int], *, microbatches: int) -> Timetable:
    """1F1B with split backward.

    >>> [action.operation for action in zero_bubble([1, 1], microbatches=2).ranks[1]]
    ['forward', 'inputs', 'forward', 'inputs', 'weights', 'weights', 'update']
    """
    depth = single("zero_bubble", replicas, microbatches)
    return Timetable(
        name="zero_bubble",
        ranks=tuple(tuple(_order(rank, depth, microbatches)) for rank in range(depth)),
        holders=held_by([1] * depth),
        microbatches=microbatches,
        flushes=True,
    )


def _order(rank: int, depth: int, microbatches: int) -> Iterator[Action]:
    def action(operation: str, microbatch: int) -> Iterator[Action]:
        if 0 <= microbatch < microbatches:
            yield Action(operation=operation, stage=rank, microbatch=microbatch)

    for microbatch in range(depth - rank):
        yield from action("forward", microbatch)
    for microbatch in range(microbatches):
        yield from action("inputs", microbatch)
        yield from action("weights", microbatch - rank)
        yield from action("forward", microbatch + depth - rank)
    for microbatch in range(microbatches, microbatches + rank):
        yield from action("weights", microbatch - rank)
    yield Action(operation="update", stage=rank, microbatch=0)
