"""Interleaved 1F1B: every rank holds several chunks of the model, so that the pipeline fills chunk by chunk.

The order is Megatron's (SC 2021, section 2.2): ranks take depth microbatches through one chunk, then through the next.
"""

from collections.abc import Iterator, Sequence

from dovetail.planning.pipeline.timetables.actions import Action, Timetable, single
from dovetail.vocabulary import InvalidRecord


def interleaved(replicas: Sequence[int], *, microbatches: int, chunks: int = 2) -> Timetable:
    """1F1B over `chunks` stages on each rank: stage s is on rank s modulo depth.

    >>> interleaved([1, 1], microbatches=4).holders
    ((0,), (1,), (0,), (1,))
    """
    depth = single("interleaved", replicas, microbatches)
    if microbatches % depth or chunks < 1:
        raise InvalidRecord(
            f"interleaving must have a multiple of its {depth} ranks as microbatches, and at least one chunk; "
            f"got {microbatches} and {chunks}."
        )
    return Timetable(
        name="interleaved",
        ranks=tuple(tuple(_order(rank, depth, microbatches, chunks)) for rank in range(depth)),
        holders=tuple((stage % depth,) for stage in range(depth * chunks)),
        microbatches=microbatches,
        flushes=True,
    )


def _order(rank: int, depth: int, microbatches: int, chunks: int) -> Iterator[Action]:
    total, group = microbatches * chunks, depth * chunks
    warm = min(total, (depth - rank - 1) * (2 if chunks > 1 else 1) + (chunks - 1) * depth)

    def action(operation: str, place: int) -> Action:
        chunk = place % group // depth
        chunk = chunk if operation == "forward" else chunks - 1 - chunk
        microbatch = place // group * depth + place % depth
        return Action(operation=operation, stage=chunk * depth + rank, microbatch=microbatch)

    yield from (action("forward", place) for place in range(warm))
    for place in range(total - warm):
        yield action("forward", warm + place)
        yield action("backward", place)
    yield from (action("backward", place) for place in range(total - warm, total))
    yield from (Action(operation="update", stage=c * depth + rank, microbatch=0) for c in range(chunks))
