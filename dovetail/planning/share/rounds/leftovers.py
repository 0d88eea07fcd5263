"""What to do with devices for which nobody has a turn: tasks that wait, then wider options for tasks that run."""

from collections import defaultdict
from collections.abc import Collection
from functools import cached_property

from dovetail.planning.problem import Problem
from dovetail.planning.share.rounds.turns import Turn
from dovetail.vocabulary import Option


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
