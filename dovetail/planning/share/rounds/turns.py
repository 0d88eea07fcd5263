"""Whose turn it is: by priority = due ÷ received, where due is the share × the time since the allocation (Gavel,
section 5), both with the coming round counted in, so that turns come evenly and nobody's priority is infinite.

Whoever holds devices counts as having received a round less: turns last longer, so there are fewer moves, and over time
shares are kept to within a few rounds. A factor on the priority instead would let holders run ahead without end.
Measured on Gavel's traces: a third fewer moves on the continuous one, half on the static one, completions the same.
Differences, due − received, with two rounds for holders: four tenths of these moves and 3% shorter completions on the
continuous one, but a makespan of 16.13 h against 16.06 h on the static one with packing, and where counts are free only
14% are gained by that against 17%. Variants of this kind differ by so much; which is best elsewhere is not known.

Devices for which nobody has a turn go to tasks that wait, then to wider options for tasks that run (`Leftovers`).
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import NamedTuple

from dovetail.planning.problem import Problem
from dovetail.planning.share.rounds.round_records import Received
from dovetail.vocabulary import Allocation, Option, TaskId

# Priority, negated; the share, and the place in its line, which tell apart who is due alike: whoever came first; and
# the task.
_Queue = list[tuple[float, int, int, TaskId]]


class Turn(NamedTuple):
    """Tasks that are to run together now, with which option, and by which share; −1 where devices were left over."""

    tasks: tuple[TaskId, ...]
    option: Option
    share: int


class Lines:
    """Who stands in line for each share of an allocation: what is the same in all of its rounds.

    >>> from dovetail.planning.share.policies import example, max_min_fairness
    >>> len(Lines(max_min_fairness.allocate(example())).shares) > 0
    True
    """

    def __init__(self, allocation: Allocation) -> None:
        groups = allocation.groups
        totals = [0.0] * len(groups)
        for share in allocation.shares:
            for group in share.groups:
                totals[group] += share.share
        self.options = [share.option for share in allocation.shares]
        # Of each share its number and, for each of its places: what a task is due of each second, which part of all
        # that it is due this is, and the tasks, as what they have received is looked up.
        self.shares = [
            (
                number,
                [
                    (
                        share.share / len(groups[group]),
                        share.share / totals[group],
                        [(number, task) for task in groups[group]],
                    )
                    for group in share.groups
                ],
            )
            for number, share in enumerate(allocation.shares)
            if share.share > 0
        ]


def turns(
    lines: Lines,
    received: Received,
    *,
    seconds: float,
    free: dict[str, int],
    holders: Mapping[TaskId, Option],
) -> list[Turn]:
    """Whose turn it is for a round of so many seconds, as long as kinds have `free` devices, which are counted down.

    Tasks that run alone stand in one queue, by priority. Each share of gangs has a queue for each of its places, and a
    gang is made up of their heads when its turn comes, so pairs of tasks are never listed.

    >>> from dovetail.planning.share.policies import example, max_min_fairness
    >>> lines = Lines(max_min_fairness.allocate(example()))
    >>> made = turns(lines, Received(), seconds=360.0, free={"fast": 1, "slow": 0}, holders={})
    >>> [turn.option.kind for turn in made]
    ['fast']
    """
    alone, together = _queues(lines, received, seconds, holders)
    heap = [(max(queue[-1][0] for queue in places), number) for number, places in together.items()]
    heapq.heapify(heap)
    taken: set[TaskId] = set()
    made: list[Turn] = []
    for priority, number, _, task in alone:
        while heap and heap[0][0] <= priority:
            _serve_gang(heap, together, lines, free, taken, made)
        if task not in taken:
            option = lines.options[number]
            if option.count <= free[option.kind]:
                taken.add(task)
                free[option.kind] -= option.count
                made.append(Turn((task,), option, number))
                if not free[option.kind] and not any(free.values()):
                    return made
    while heap:
        _serve_gang(heap, together, lines, free, taken, made)
    return made


def _serve_gang(
    heap: list[tuple[float, int]],
    together: Mapping[int, list[_Queue]],
    lines: Lines,
    free: dict[str, int],
    taken: set[TaskId],
    made: list[Turn],
) -> None:
    """Serve the gang at the head of the heap if it still is the first, else put its share where it now belongs."""
    priority, number = heap[0]
    option = lines.options[number]
    gang = _heads(together[number], taken) if option.count <= free[option.kind] else None
    if gang is None:
        heapq.heappop(heap)
    elif gang[0] > priority:
        heapq.heapreplace(heap, (gang[0], number))
    else:
        taken.update(gang[1])
        free[option.kind] -= option.count
        made.append(Turn(gang[1], option, number))


def _queues(
    lines: Lines, received: Received, seconds: float, holders: Mapping[TaskId, Option]
) -> tuple[_Queue, dict[int, list[_Queue]]]:
    """The queue of all that run alone, the next first, and of each share of gangs a queue for each place, the next
    last. Priorities are negated."""
    horizon = received.elapsed_seconds + seconds
    had, owed = received.seconds, received.owed_seconds
    alone: _Queue = []
    together: dict[int, list[_Queue]] = {}
    for number, places in lines.shares:
        option = lines.options[number]
        kind, families = option.kind, option.families
        queues = []
        for unit, part, keys in places:
            due = unit * horizon
            queue = []
            for place, key in enumerate(keys):
                task = key[1]
                time = had.get(key, 0.0)
                held = holders.get(task)
                # The same option object is looked for first, since it mostly is the same.
                if held is option or (held is not None and held.kind == kind and held.families == families):
                    if time < seconds:
                        time = seconds
                else:
                    time += seconds
                late = due + part * owed[task] if task in owed else due
                queue.append((-late / time, number, place, task))
            queues.append(queue)
        if len(queues) == 1:
            alone += queues[0]
        else:
            together[number] = [sorted(queue, reverse=True) for queue in queues]
    alone.sort()
    return alone, together


def _heads(places: list[_Queue], taken: set[TaskId]) -> tuple[float, tuple[TaskId, ...]] | None:
    """The next gang of a share and the priority of its last member, or None where a place has nobody left."""
    gang: list[TaskId] = []
    priority = -math.inf
    for queue in places:
        while queue and queue[-1][3] in taken:
            queue.pop()
        head = next((entry for entry in reversed(queue) if entry[3] not in taken and entry[3] not in gang), None)
        if head is None:
            return None
        gang.append(head[3])
        priority = max(priority, head[0])
    return priority, tuple(gang)


class Leftovers:
    """The ways in which single tasks of a problem run, looked up once for all its rounds.

    >>> from dovetail.planning.share.policies import example
    >>> [turn.tasks for turn in Leftovers(example()).fill({"a"}, {"fast": 1, "slow": 0})]
    [('b',)]
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._family = {member.task: family.name for family in problem.families for member in family.members}

    @cached_property
    def _ways(self) -> dict[str, list[tuple[float, int]]]:
        """Of each family the seconds of a step and the number of each of its options alone."""
        found: dict[str, list[tuple[float, int]]] = defaultdict(list)
        for number, option in enumerate(self._problem.options):
            if len(option.families) == 1:
                found[option.families[0]].append((option.step_seconds[0], number))
        return found

    @cached_property
    def _grow(self) -> set[str]:
        """The families that run alone on more than one count of devices."""
        options = self._problem.options
        if len({option.count for option in options}) < 2:  # mostly, and told at a glance
            return set()
        return {name for name, ways in self._ways.items() if len({options[number].count for _, number in ways}) > 1}

    def fill(self, busy: Collection[str], free: dict[str, int]) -> list[Turn]:
        """Turns for tasks that have none: of all that fit, the one nearest to the best of its rates first."""
        if len(busy) == len(self._family):
            return []
        options = self._problem.options
        wishes = []
        for place, (task, name) in enumerate(self._family.items()):
            if task not in busy:
                ways = self._ways[name]
                best = min(ways)[0]
                wishes += [
                    (seconds / best, number, place, task)
                    for seconds, number in ways
                    if options[number].count <= free[options[number].kind]
                ]
        filled: list[Turn] = []
        served: set[str] = set()
        for _, number, _, task in sorted(wishes):
            option = options[number]
            if task not in served and option.count <= free[option.kind]:
                served.add(task)
                free[option.kind] -= option.count
                filled.append(Turn((task,), option, -1))
        return filled

    def widen(self, turns: list[Turn], free: dict[str, int]) -> list[Turn]:
        """The turns, where tasks that run alone have grown onto devices of their kind that nobody else can use: the
        largest gain for each device first, where a wider option is faster.

        >>> from dovetail.planning.share.policies import example
        >>> Leftovers(example()).widen([], {"fast": 1})
        []
        """
        if not self._grow:
            return turns
        growing = [
            number
            for number, turn in enumerate(turns)
            if len(turn.tasks) == 1 and self._family[turn.tasks[0]] in self._grow and free[turn.option.kind]
        ]
        turns = list(turns)
        while growing:
            best = max(((*self._gain(turns[number], free), number) for number in growing), key=lambda gain: gain[0])
            gain, option, number = best
            if option is None or gain <= 0:
                break
            free[option.kind] -= option.count - turns[number].option.count
            turns[number] = turns[number]._replace(option=option)
        return turns

    def _gain(self, turn: Turn, free: dict[str, int]) -> tuple[float, Option | None]:
        """The best wider option of a turn: how much faster it is, for each device more, and which it is."""
        now, most, found = turn.option, 0.0, None
        for seconds, number in self._ways[self._family[turn.tasks[0]]]:
            option = self._problem.options[number]
            more = option.count - now.count
            if option.kind == now.kind and 0 < more <= free[now.kind]:
                gain = (now.step_seconds[0] / seconds - 1) / more
                if gain > most:
                    most, found = gain, option
        return most, found
