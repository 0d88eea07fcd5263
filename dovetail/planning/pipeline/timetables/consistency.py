"""That a timetable cannot hang and does all its work: proven before anything runs.

An action waits for those before it in its rank's list, for what it needs from elsewhere, and an update for the
gradients of its stage's other replicas, which those hand in with their last backward before it. If this waiting has no
cycle, then some rank can always go on, whatever anything takes. Messages between two ranks must also be awaited in the
order in which they are sent, because they arrive in that order.
"""

from collections import Counter, defaultdict, deque

from dovetail.planning.pipeline.timetables.actions import OPERATIONS, Action, Timetable, done, needs
from dovetail.vocabulary import InvalidRecord

Spot = tuple[int, int]  # a rank, and a place in its list


def check(timetable: Timetable) -> None:
    """Raise unless every microbatch is computed once at every stage where it belongs, nothing waits for itself,
    messages come in order, backward uses the weights that forward used, and replicas make the same updates, of all
    gradients.

    >>> wrong = Action(operation="backward", stage=0, microbatch=0), Action(operation="forward", stage=0, microbatch=0)
    >>> try:
    ...     check(Timetable(name="wrong", ranks=(wrong,), holders=((0,),), microbatches=1, flushes=True))
    ... except InvalidRecord as error:
    ...     print(error)
    timetable 'wrong' would hang: rank 0 waits at backward 0 of stage 0 for rank 0 to do forward 0 of stage 0.
    """
    _check_work(timetable)
    waits = waiting(timetable)
    order = _ordered(waits)
    if len(order) < len(waits):
        raise InvalidRecord(f"timetable {timetable.name!r} would hang: {_cycle(timetable, waits, set(order))}.")
    _check_messages(timetable)
    _check_versions(timetable)
    _check_updates(timetable)


def waiting(timetable: Timetable) -> dict[Spot, list[Spot]]:
    """For each action, those that must be over before it begins.

    >>> forward, backward = (Action(operation=what, stage=0, microbatch=0) for what in ("forward", "backward"))
    >>> waiting(Timetable(name="tiny", ranks=((forward, backward),), holders=((0,),), microbatches=1, flushes=True))
    {(0, 0): [], (0, 1): [(0, 0), (0, 0)]}
    """
    spots = {done(action): (rank, place) for rank, place, action in timetable.actions() if action.operation != "update"}
    updates = _updates(timetable)
    waits: dict[Spot, list[Spot]] = {}
    for rank, place, action in timetable.actions():
        found = [(rank, place - 1)] if place else []
        found += [spots[needed] for needed, _ in needs(timetable, action)]
        if action.operation == "update":
            others = [spot for spot in updates[action.stage, action.microbatch] if spot[0] != rank]
            found += [spot for other in others for spot in _handed_in(timetable, other)]
        waits[rank, place] = found
    return waits


def versions_kept(timetable: Timetable) -> tuple[int, ...]:
    """How many versions of its weights each rank must keep so that all it uses are there.

    >>> forward, backward = (Action(operation=what, stage=0, microbatch=0) for what in ("forward", "backward"))
    >>> versions_kept(Timetable(name="t", ranks=((forward, backward),), holders=((0,),), microbatches=1, flushes=True))
    (1,)
    """
    kept = []
    for actions in timetable.ranks:
        updates: Counter[int] = Counter()
        most = 1
        for action in actions:
            if action.operation == "update":
                updates[action.stage] += 1
            else:
                most = max(most, updates[action.stage] - action.version + 1)
        kept.append(most)
    return tuple(kept)


def _handed_in(timetable: Timetable, update: Spot) -> list[Spot]:
    """The last backward before a replica's update: with it, its gradients are handed in, whatever it does next."""
    rank, place = update
    stage = timetable.ranks[rank][place].stage
    for before in range(place - 1, -1, -1):
        action = timetable.ranks[rank][before]
        if action.stage == stage and action.operation in ("backward", "weights", "inputs"):
            return [(rank, before)]
    return []


def _updates(timetable: Timetable) -> dict[tuple[int, int], list[Spot]]:
    found: dict[tuple[int, int], list[Spot]] = defaultdict(list)
    for rank, place, action in timetable.actions():
        if action.operation == "update":
            found[action.stage, action.microbatch].append((rank, place))
    return found


def _check_work(timetable: Timetable) -> None:
    counted = Counter((action.operation, action.stage, action.microbatch) for _, _, action in timetable.actions())
    for rank, _, action in timetable.actions():
        if action.operation not in OPERATIONS:
            raise InvalidRecord(f"an action must be one of {OPERATIONS}, got {action.operation!r}.")
        is_update = action.operation == "update"
        allowed = timetable.holders[action.stage] if is_update else (timetable.rank(action.stage, action.microbatch),)
        if rank not in allowed:
            raise InvalidRecord(f"timetable {timetable.name!r} gives {action} to rank {rank}; it belongs to {allowed}.")
    for stage in range(timetable.depth):
        for microbatch in range(timetable.microbatches):
            counts = [counted[operation, stage, microbatch] for operation in OPERATIONS[:4]]
            if counts not in ([1, 1, 0, 0], [1, 0, 1, 1]):
                raise InvalidRecord(
                    f"timetable {timetable.name!r} must do forward and backward, or both parts of it, once for "
                    f"microbatch {microbatch} at stage {stage}; got {counts} of {OPERATIONS[:4]}."
                )


def _ordered(waits: dict[Spot, list[Spot]]) -> list[Spot]:
    """The actions that can be done, in an order in which they can."""
    left = {spot: len(needed) for spot, needed in waits.items()}
    then: dict[Spot, list[Spot]] = defaultdict(list)
    for spot, needed in waits.items():
        for other in needed:
            then[other].append(spot)
    ready, order = deque(spot for spot, count in left.items() if not count), []
    while ready:
        spot = ready.popleft()
        order.append(spot)
        for other in then[spot]:
            left[other] -= 1
            if not left[other]:
                ready.append(other)
    return order


def _cycle(timetable: Timetable, waits: dict[Spot, list[Spot]], over: set[Spot]) -> str:
    """Who waits for whom, once round: each rank at the first action that it cannot do."""
    stuck = {
        rank: next(place for place in range(len(actions)) if (rank, place) not in over)
        for rank, actions in enumerate(timetable.ranks)
        if any((rank, place) not in over for place in range(len(actions)))
    }
    rank = min(stuck)
    told: dict[int, str] = {}
    while rank not in told:
        other, place = next(spot for spot in waits[rank, stuck[rank]] if spot not in over)
        at, wanted = timetable.ranks[rank][stuck[rank]], timetable.ranks[other][place]
        told[rank] = f"rank {rank} waits at {at} for rank {other} to do {wanted}"
        rank = other
    ranks = list(told)
    return ", ".join(told[each] for each in ranks[ranks.index(rank) :])


def _check_messages(timetable: Timetable) -> None:
    spots = {done(action): (rank, place) for rank, place, action in timetable.actions() if action.operation != "update"}
    last: dict[tuple[int, int], tuple[int, Action]] = {}
    for rank, _, action in timetable.actions():
        for needed, is_message in needs(timetable, action):
            if not is_message:
                continue
            sender, sent = spots[needed]
            before, earlier = last.get((sender, rank), (-1, action))
            if sent < before:
                raise InvalidRecord(
                    f"messages must be awaited in the order they are sent; in timetable {timetable.name!r} rank {rank} "
                    f"awaits {earlier}'s before {action}'s, and rank {sender} sends them the other way round."
                )
            last[sender, rank] = sent, action


def _check_updates(timetable: Timetable) -> None:
    for stage, holders in enumerate(timetable.holders):
        own = {rank: [action for action in timetable.ranks[rank] if action.stage == stage] for rank in holders}
        made = {rank: [each.microbatch for each in own[rank] if each.operation == "update"] for rank in holders}
        wanted = list(range(max(map(len, made.values()))))
        for rank in holders:
            if made[rank] != wanted or own[rank][-1].operation != "update":
                raise InvalidRecord(
                    f"every rank of stage {stage} must make the same updates in order, the last after all its "
                    f"backwards; in timetable {timetable.name!r} rank {rank} makes {made[rank]} of {wanted} and ends "
                    f"with {own[rank][-1]}."
                )


def _check_versions(timetable: Timetable) -> None:
    used: dict[tuple[int, int], int] = {}
    for _, _, action in timetable.actions():
        if action.operation == "update":
            continue
        if used.setdefault((action.stage, action.microbatch), action.version) != action.version:
            raise InvalidRecord(
                f"backward must use the weights that forward used; timetable {timetable.name!r} does not for {action}."
            )
    for actions in timetable.ranks:
        updates: Counter[int] = Counter()
        for action in actions:
            if action.operation == "update":
                updates[action.stage] += 1
            elif action.version > updates[action.stage]:
                raise InvalidRecord(
                    f"timetable {timetable.name!r} has {action} use version {action.version} after "
                    f"{updates[action.stage]} updates."
                )
