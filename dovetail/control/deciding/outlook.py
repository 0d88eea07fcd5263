"""When each task should start and end, and why it waits, as the way of deciding has it: by a plan, or by turns."""

import dataclasses
import math
import time
from collections.abc import Iterable, Mapping

from dovetail.control.state import State
from dovetail.planning.share.rounds import Gang, Received, Rota, Round, after, explain
from dovetail.vocabulary import Allocation, Placement, TaskId
from dovetail.vocabulary.units import show_some

# A turn that is further away than so many rounds is not looked for; where many wait, than as many as so many looks at a
# task give: whoever asks for a list keeps others waiting.
AHEAD = 50
LOOKS = 10_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """When a task should start, if it waits, and end; and why it waits, or runs. Times are on the engine's clock.

    >>> Outlook(why="it is next").start_seconds is None
    True
    """

    start_seconds: float | None = None
    end_seconds: float | None = None
    why: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """In how many rounds each task has its turn, and how many rounds were looked at."""

    away: Mapping[TaskId, int]
    looked: int


def of_plan(state: State) -> dict[TaskId, Outlook]:
    """By the last plan, as it goes: what has not started does so when its devices are free, in planned order."""
    now = state.now()
    placed = state.problem().running
    running = {task: Outlook(end_seconds=now + each.end_seconds) for each in placed for task in each.tasks}
    free = {device: now + each.end_seconds for each in placed for device in each.devices}
    plan = state.plans[-1][1] if state.plans else None
    placements = plan.schedule.placements if plan and plan.schedule else ()
    waiting = [each for each in placements if all(state.ledger[task].status == "pending" for task in each.tasks)]
    found = {}
    for ahead, placement in enumerate(sorted(waiting, key=lambda each: each.start_seconds)):
        start = max(now, *(free.get(device, now) for device in placement.devices))
        free |= dict.fromkeys(placement.devices, start + placement.duration_seconds)
        turn = "it is next" if not ahead else f"{ahead} {'starts' if ahead == 1 else 'start'} before it"
        why = f"{_taken(state, placement, start)}; {turn}"
        for task in placement.tasks:
            found[task] = Outlook(start_seconds=start, end_seconds=start + placement.duration_seconds, why=why)
    return found | running


def of_running(
    allocation: Allocation, *, made: Round, before: Iterable[Gang], steps: Mapping[TaskId, int], now: float
) -> dict[TaskId, Outlook]:
    """Of those who run in a round, by the shares of an allocation, were nothing to change: a task ends when its share
    of the time has brought it there."""
    rates = _rates(allocation)
    ends = {task: now + left / rates[task] for task, left in steps.items() if rates.get(task)}
    decisions = explain(dataclasses.replace(made, waiting=()), previous=before)
    return {each.task: Outlook(end_seconds=ends.get(each.task), why=each.because) for each in decisions}


def of_waiting(
    state: State,
    allocation: Allocation,
    *,
    made: Round,
    turns: Turns,
    next_seconds: float,
    steps: Mapping[TaskId, int],
) -> dict[TaskId, Outlook]:
    """Of those who wait in a round, by the same shares and the rounds to come."""
    now, rates, due = state.now(), _rates(allocation), _due(allocation)
    begin = next_seconds if math.isfinite(next_seconds) else now
    names = [state.tasks[task].name for gang in made.gangs for task in gang.tasks if task in state.tasks]
    this = f"{show_some(names)} {'has' if len(names) == 1 else 'have'} this round, until about {clock(begin, now=now)}"
    found = {}
    for task in made.waiting:
        away, rate, left = turns.away.get(task), rates.get(task, 0.0), steps.get(task)
        start = None if away is None else begin + (away - 1) * made.seconds
        turn = f"its turn comes in {_rounds(away)}" if away else f"its turn is more than {turns.looked} rounds away"
        because = f"{this}; it is due {due.get(task, 0.0):.0%} of the time and {turn}"
        end = now + left / rate if rate and left is not None else None
        # However large its share, it has to run for all its steps once its turn has come.
        runs = (left or 0) * due.get(task, 0.0) / rate if rate else 0.0
        found[task] = Outlook(start_seconds=start, end_seconds=_end_after(start, runs, end), why=because)
    return found


def _rates(allocation: Allocation) -> dict[TaskId, float]:
    """The steps per second of each task."""
    pairs = zip(allocation.groups, allocation.rates(), strict=True)
    return {task: rate for tasks, rate in pairs for task in tasks}


def _end_after(start: float | None, runs: float, end: float | None) -> float | None:
    """When a task that waits ends: not before it has started and run; unknown where its start is.

    >>> _end_after(100.0, 20.0, 60.0), _end_after(100.0, 20.0, 300.0), _end_after(None, 20.0, 60.0)
    (120.0, 300.0, None)
    """
    return None if start is None or end is None else max(end, start + runs)


def find_turns(rota: Rota, received: Received, made: Round) -> Turns:
    """In which round from this one on each task that waits in it runs first."""
    waiting, found, before = set(made.waiting), dict[TaskId, int](), made.gangs
    ahead = max(1, min(AHEAD, LOOKS // max(1, len(waiting))))
    for away in range(1, ahead + 1):
        if not waiting - found.keys():
            break
        received = after(received, made, seconds=made.seconds)
        made = rota.next(received=received, previous=before, round_seconds=made.seconds)
        before = made.gangs
        found |= {task: away for gang in made.gangs for task in gang.tasks if task not in found}
    return Turns(away=found, looked=ahead)


def _due(allocation: Allocation) -> dict[str, float]:
    """The part of the time that each task is to run."""
    found: dict[str, float] = {}
    for share in allocation.shares:
        for group in share.groups:
            tasks = allocation.groups[group]
            for task in tasks:
                found[task] = found.get(task, 0.0) + share.share / len(tasks)
    return found


def _rounds(count: int) -> str:
    return "the next round" if count == 1 else f"{count} rounds"


def _taken(state: State, placement: Placement, start: float) -> str:
    wanted = set(placement.devices)
    holders = [each for each in state.running.values() if wanted & set(each.order.devices)]
    held = len(wanted & {device for each in holders for device in each.order.devices})
    names = [state.tasks[task].name for each in holders for task in each.tasks if task in state.tasks]
    if not held:
        return f"{_devices(len(wanted), len(wanted))} free and about to be given away"
    return f"{_devices(held, len(wanted))} taken by {show_some(names)} until about {clock(start, now=state.now())}"


def _devices(count: int, of: int) -> str:
    if of == 1:
        return "its device is"
    if count == of:
        return "both its devices are" if of == 2 else f"all {of} of its devices are"
    return f"{count} of its {of} devices {'is' if count == 1 else 'are'}"


def clock(seconds: float, *, now: float) -> str:
    """A moment as people read it on this machine: 14:05, or with its day where that is not today.

    >>> clock(120.0, now=60.0) == time.strftime("%H:%M", time.localtime(120.0))
    True
    """
    there, here = time.localtime(seconds), time.localtime(now)
    return time.strftime("%H:%M" if there[:3] == here[:3] else "%Y-%m-%d %H:%M", there)
