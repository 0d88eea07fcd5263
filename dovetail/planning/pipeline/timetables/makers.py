"""The timetables: 1F1B, in which every rank, once warm, does one forward and one backward in turn, and its relatives.

Warm-up is as in PipeDream (SOSP 2019, section 3.2): (ranks of this and later stages − 1) // replicas of this stage.
Where stages are replicated that is too little and a strict turn too rigid (see `played.py`): the order is played
through, with `spare` microbatches more in flight at every stage but the last. So is 2BW: with PipeDream's warm-up each
rank's next action needs what another finishes at the same moment, so that every message and every update is waited for;
one microbatch more between them, and they overlap. In 2BW, unlike in stashing, weights do not depend on it.

With a flush at the end this is 1F1B-flush; GPipe does all forwards first. Without a flush weights change under way:

- stashing: an update after each round of the replicas; backward uses the weights its forward used, kept meanwhile.
- vertical sync: besides, a microbatch uses at every stage the version that the first stage gave it.
- 2BW (ICML 2021): an update after m microbatches; step t uses the weights of step t − 1, so two versions are enough:
  w(t+1) = w(t) − ν∇f(w(t−1)).

Interleaved, every rank holds several chunks of the model, so that the pipeline fills chunk by chunk. The order is
Megatron's (SC 2021, section 2.2): ranks take depth microbatches through one chunk, then through the next.

Zero bubble has backward in two, so that gradients of weights, for which nobody waits, fill what would be idle. ZB-H1 of
Qi et al. (ICLR 2024): rank r begins with depth − r forwards, as in 1F1B, and puts the gradients of weights off by r
microbatches. So every rank holds depth microbatches, no more than the first one of 1F1B does; gradients of inputs
travel back without waiting for those of weights; and these fill the end, where 1F1B is idle.
"""

from collections.abc import Iterator, Sequence

from dovetail.planning.pipeline.timetables.actions import Action, Timetable, checked_replicas, held_by, single
from dovetail.planning.pipeline.timetables.played import Versions, play
from dovetail.vocabulary import InvalidRecord

# In flight beyond PipeDream's where stages are replicated, unless asked otherwise.
_SPARE = 1


def gpipe(replicas: Sequence[int], *, microbatches: int) -> Timetable:
    """All forwards, then all backwards: the most activations, the same bubble as 1F1B.

    >>> [str(action) for action in gpipe([1, 1], microbatches=2).ranks[1]][:3]
    ['forward 0 of stage 1', 'forward 1 of stage 1', 'backward 0 of stage 1']
    """
    return in_strict_turn("gpipe", replicas, microbatches, [microbatches] * len(replicas))


def one_forward_one_backward(replicas: Sequence[int], *, microbatches: int, spare: int = _SPARE) -> Timetable:
    """1F1B with a flush at the end.

    >>> [action.operation for action in one_forward_one_backward([1, 1], microbatches=3).ranks[0]]
    ['forward', 'forward', 'backward', 'forward', 'backward', 'backward', 'update']
    """
    return _alternating("1f1b", replicas, microbatches, spare)


def stashing(replicas: Sequence[int], *, microbatches: int, spare: int = _SPARE) -> Timetable:
    """PipeDream's 1F1B with weight stashing: never empty, an update after each round.

    >>> [(action.microbatch, action.version) for action in stashing([1, 1], microbatches=4).ranks[0]
    ...  if action.operation == "forward"]
    [(0, 0), (1, 0), (2, 1), (3, 2)]
    """
    return _alternating("stashing", replicas, microbatches, spare, every=1, versions=lambda stage, batch, made: made)


def vertical_sync(replicas: Sequence[int], *, microbatches: int, spare: int = _SPARE) -> Timetable:
    """Weight stashing where a microbatch uses at every stage the version it had at the first.

    Stages with unlike replicas make unlike numbers of updates; the version is then the newest that holds no microbatch
    which the first stage's does not.

    >>> [(action.microbatch, action.version) for action in vertical_sync([1, 1], microbatches=4).ranks[1]
    ...  if action.operation == "forward"]
    [(0, 0), (1, 0), (2, 1), (3, 2)]
    """
    first: dict[int, int] = {}
    counts = list(replicas)

    def version(stage: int, microbatch: int, made: int) -> int:
        if stage == 0:
            first[microbatch] = made * counts[0]
        return min(made, first[microbatch] // counts[stage])

    return _alternating("vertical_sync", replicas, microbatches, spare, every=1, versions=version)


def double_buffered(replicas: Sequence[int], *, microbatches: int, steps: int = 3, spare: int = _SPARE) -> Timetable:
    """PipeDream-2BW: never empty, an update after each step of `microbatches`, with the weights of the step before.

    >>> double_buffered([1, 1], microbatches=2, steps=3).microbatches
    6
    """
    depth = len(replicas)
    if microbatches < depth:
        raise InvalidRecord(
            f"2BW must have at least as many microbatches in a step as stages, or weights are overwritten while they "
            f"are used; got {microbatches} for {depth} stages. Use smaller microbatches or fewer stages."
        )
    if any(microbatches % count for count in checked_replicas(replicas, microbatches)):
        raise InvalidRecord(
            f"2BW's microbatches in a step must be a multiple of every stage's replicas, got {microbatches} "
            f"for {list(replicas)}."
        )
    return _alternating(
        "2bw",
        replicas,
        microbatches * steps,
        spare,
        every=microbatches,
        versions=lambda stage, microbatch, made: max(microbatch // microbatches - 1, 0),
        # One forward more before the first backward than there are microbatches would need weights not yet there.
        singly=min(spare, microbatches - (depth - 1)),
    )


def warm_ups(replicas: Sequence[int], *, spare: int = 0) -> list[int]:
    """How many forwards a rank of each stage does before its first backward.

    >>> warm_ups([1, 1, 1]), warm_ups([3, 2, 1]), warm_ups([3, 2, 1], spare=1)
    ([2, 1, 0], [1, 1, 0], [2, 2, 0])
    """
    found: list[int] = []
    for stage in reversed(range(len(replicas))):
        own, is_last = replicas[stage], stage == len(replicas) - 1
        ahead = (sum(replicas[stage:]) - 1) // own + (0 if is_last else spare)
        # The next stage's warm-up must come from this one's, and from one forward more.
        wanted = (found[0] + 1) * replicas[stage + 1] if found else 0
        found.insert(0, max(ahead, -(-wanted // own) - 1))
    return found


def _alternating(
    name: str,
    replicas: Sequence[int],
    microbatches: int,
    spare: int,
    *,
    every: int | None = None,
    versions: Versions = lambda stage, microbatch, made: 0,
    singly: int = 0,
) -> Timetable:
    """`every` so many microbatches, or each round of the replicas if that is longer, weights are updated; without it
    once, after the last. `singly` is what is to spare where no stage is replicated."""
    counts = checked_replicas(replicas, microbatches)
    if max(counts) == 1:
        warm = warm_ups(counts, spare=singly)
        return in_strict_turn(name, counts, microbatches, warm, every=every, versions=versions)
    return Timetable(
        name=name,
        ranks=play(counts, microbatches, warm_ups(counts, spare=spare), every=every, versions=versions),
        holders=held_by(counts),
        microbatches=microbatches,
        flushes=every is None,
    )


def in_strict_turn(
    name: str,
    replicas: Sequence[int],
    microbatches: int,
    warm: Sequence[int],
    *,
    every: int | None = None,
    versions: Versions = lambda stage, microbatch, made: 0,
) -> Timetable:
    """Forwards and backwards in strict turn after `warm` forwards on each rank of a stage. With several replicas only
    for timetables that update once, after the last backward.

    >>> [action.operation for action in in_strict_turn("1f1b", [1], 2, [0]).ranks[0]]
    ['forward', 'backward', 'forward', 'backward', 'update']
    """
    holders = held_by(checked_replicas(replicas, microbatches))
    ranks: list[tuple[Action, ...]] = []
    # Stage by stage, because versions at a stage may depend on those at the first.
    for stage, held in enumerate(holders):
        for replica in range(len(held)):
            own = range(replica, microbatches, len(held))
            ranks.append(tuple(_alternating_order(stage, own, min(warm[stage], len(own)), every, versions)))
    return Timetable(name=name, ranks=tuple(ranks), holders=holders, microbatches=microbatches, flushes=every is None)


def _alternating_order(stage: int, own: range, ahead: int, every: int | None, versions: Versions) -> Iterator[Action]:
    """A rank's actions: `ahead` forwards, then forwards and backwards in turn, and updates."""
    forwards = iter(own)
    used: dict[int, int] = {}
    made = 0

    def forward() -> Iterator[Action]:
        microbatch = next(forwards, None)
        if microbatch is not None:
            used[microbatch] = versions(stage, microbatch, made)
            yield Action(operation="forward", stage=stage, microbatch=microbatch, version=used[microbatch])

    for _ in range(ahead):
        yield from forward()
    for done, microbatch in enumerate(own, start=1):
        yield from forward()
        yield Action(operation="backward", stage=stage, microbatch=microbatch, version=used[microbatch])
        if done % (every or len(own)) == 0:
            yield Action(operation="update", stage=stage, microbatch=made)
            made += 1


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
        ranks=tuple(tuple(_interleaved_order(rank, depth, microbatches, chunks)) for rank in range(depth)),
        holders=tuple((stage % depth,) for stage in range(depth * chunks)),
        microbatches=microbatches,
        flushes=True,
    )


def _interleaved_order(rank: int, depth: int, microbatches: int, chunks: int) -> Iterator[Action]:
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


def zero_bubble(replicas: Sequence[int], *, microbatches: int) -> Timetable:
    """1F1B with split backward.

    >>> [action.operation for action in zero_bubble([1, 1], microbatches=2).ranks[1]]
    ['forward', 'inputs', 'forward', 'inputs', 'weights', 'weights', 'update']
    """
    depth = single("zero_bubble", replicas, microbatches)
    return Timetable(
        name="zero_bubble",
        ranks=tuple(tuple(_zero_bubble_order(rank, depth, microbatches)) for rank in range(depth)),
        holders=held_by([1] * depth),
        microbatches=microbatches,
        flushes=True,
    )


def _zero_bubble_order(rank: int, depth: int, microbatches: int) -> Iterator[Action]:
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
