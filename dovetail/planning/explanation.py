"""Why a schedule is as it is, in sentences with numbers.

Reads the problem and the schedule only, so it explains the schedules of every planner alike, and repeats
nothing that a planner believed. It says what each choice takes; it does not know how the choice was found.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from dovetail.planning.problem import Problem
from dovetail.vocabulary import Option, Placement, Rejection, Schedule
from dovetail.vocabulary.approximations import KNOB, split_knobs
from dovetail.vocabulary.units import show_seconds, show_some

# Above this many tasks nobody reads a line for each; families have a line each instead, and above as many families
# options do.
TASKS_EXPLAINED = 200

_Item = TypeVar("_Item")
_Key = TypeVar("_Key", bound=Hashable)


def explain(problem: Problem, schedule: Schedule) -> tuple[str, ...]:
    """One line for each task, in the order they start, that says why this option and not the next best; tasks of which
    the same is to be said have one line. Beyond 200 tasks one for each family, and beyond 200 families one for each
    technique, kind and count.

    >>> from dovetail.vocabulary import Cluster, Kind
    >>> one = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(4.2,))
    >>> two = Option(families=("f",), technique="resident", kind="cpu", count=2, step_seconds=(3.0,))
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
    >>> placement = Placement(
    ...     tasks=("a",), steps=(10,), option=one, devices=("n0:0",), start_seconds=0.0, duration_seconds=42.0)
    >>> problem = Problem(cluster=cluster, families=(), options=(one, two))
    >>> print(*explain(problem, Schedule(placements=(placement,)))[0].split("; "), sep="\\n")
    a: resident on 1 × cpu, 42.0 s (measured)
    next best resident on 2 × cpu would take 30.0 s but 60.0 device-seconds instead of 42.0
    """
    ordered = sorted(schedule.placements, key=lambda placement: (placement.start_seconds, placement.tasks))
    options = _grouped(problem.options, lambda option: option.families)
    rejections = _grouped(problem.rejections, lambda rejection: rejection.families)
    if sum(len(placement.tasks) for placement in ordered) <= TASKS_EXPLAINED:
        chosen = [[placement] for placement in ordered]
    else:
        by_family = _grouped(ordered, lambda placement: placement.option.families)
        if len(by_family) > TASKS_EXPLAINED:
            return _by_way(ordered)
        chosen = [by_family[families] for families in sorted(by_family)]
    prices = {kind.name: kind.price_per_hour for kind in problem.cluster.kinds}
    if not problem.objective.startswith("spend"):
        prices = {}
    lines: dict[str, list[str]] = defaultdict(list)
    for placements in chosen:
        lines[_because(placements, options, rejections, prices)] += [task for each in placements for task in each.tasks]
    return tuple(f"{show_some(tasks)}: {because}" for because, tasks in lines.items())


def _by_way(placements: Sequence[Placement]) -> tuple[str, ...]:
    """How many tasks run in each way, and what that takes."""
    lines = []
    for way, group in sorted(_grouped(placements, lambda placement: _option(placement.option)).items()):
        tasks = sum(len(placement.tasks) for placement in group)
        area = sum(placement.duration_seconds * placement.option.count for placement in group)
        durations = [placement.duration_seconds for placement in group]
        origins = sorted({_origin(placement.option) for placement in group})
        lines.append(
            f"{tasks} tasks: {way}, {show_seconds(min(durations))} to {show_seconds(max(durations))} each, "
            f"{area:.1f} device-seconds ({' and '.join(origins)})"
        )
    return tuple(lines)


def _because(
    placements: Sequence[Placement],
    options: Mapping[tuple[str, ...], Sequence[Option]],
    rejections: Mapping[tuple[str, ...], Sequence[Rejection]],
    prices: Mapping[str, float],
) -> str:
    """What was chosen, and the next best for what starts first."""
    if len(placements) == 1:
        taken = f"{_option(placements[0].option)}, {show_seconds(placements[0].duration_seconds)} "
        taken += f"({_origin(placements[0].option)})"
    else:
        taken = "; ".join(_group(option, group) for option, group in _by_option(placements).items())
    families, measured = placements[0].option.families, placements[0].option.measured_families
    others = options.get(families, ())
    no_other = len(families) > 1 and not set(others) - set(_by_option(placements))
    alone = _alone(placements, options) if no_other else ""
    bought = _bought(placements[0].option, others)
    return f"{taken}; {bought}{alone or _next_best(placements, others, rejections.get(measured, ()), prices)}"


def _bought(option: Option, others: Sequence[Option]) -> str:
    """What an approximation saves of each step, where the same was measured with exact ones; empty without one."""
    approximate, _ = split_knobs(option.knobs)
    if not approximate:
        return ""
    place = (option.technique, option.kind, option.count)
    exact = [each for each in others if (each.technique, each.kind, each.count) == place and KNOB not in each.knobs]
    if not exact:
        return f"{approximate}: the same with exact steps does not fit; "
    before = min(exact, key=lambda each: sum(each.step_seconds))
    update = f"update {before.update_seconds:.3g} → {option.update_seconds:.3g} s, "
    is_known = before.update_seconds and option.update_seconds
    step = f"step {sum(before.step_seconds):.3g} → {sum(option.step_seconds):.3g} s"
    return f"{approximate}: {update if is_known else ''}{step}; "


def _alone(placements: Sequence[Placement], options: Mapping[tuple[str, ...], Sequence[Option]]) -> str:
    """What the tasks of gangs would take each by itself, one after another, where all can."""
    area = sum(placement.duration_seconds * placement.option.count for placement in placements)
    apart = 0.0
    for placement in placements:
        for family, steps in zip(placement.option.families, placement.steps, strict=True):
            if not options.get((family,)):
                return ""
            apart += min(_area(option, [(steps,)]) for option in options[family,])
    return f"each by itself would take {apart:.1f} device-seconds instead of {area:.1f}"


def _group(option: Option, placements: Sequence[Placement]) -> str:
    durations = [placement.duration_seconds for placement in placements]
    shortest, longest = show_seconds(min(durations)), show_seconds(max(durations))
    each = shortest if shortest == longest else f"{shortest} to {longest}"
    return f"{len(placements)} on {_option(option)}, {each} each ({_origin(option)})"


def _next_best(
    placements: Sequence[Placement],
    options: Sequence[Option],
    rejected: Sequence[Rejection],
    prices: Mapping[str, float],
) -> str:
    """The other option that takes the least device-seconds for the same tasks, with what it takes; where spending
    counts, the one on which least is spent."""
    used = set(_by_option(placements))
    others = [option for option in options if option not in used]
    if not others:
        return _no_other(rejected)
    steps = [placement.steps for placement in placements]
    if prices:
        best = min(others, key=lambda option: (_area(option, steps) * prices[option.kind], _option(option)))
        would = _area(best, steps) * prices[best.kind] / 3600
        spent = sum(p.duration_seconds * p.option.count * prices[p.option.kind] for p in placements) / 3600
        takes = show_seconds(_longest(best, steps))
        return f"{spent:.4g} spent; next best {_option(best)} would spend {would:.4g} and take {takes}"
    best = min(others, key=lambda option: (_area(option, steps), _longest(option, steps), _option(option)))
    seconds, longest = _longest(best, steps), max(placement.duration_seconds for placement in placements)
    area = sum(placement.duration_seconds * placement.option.count for placement in placements)
    return f"next best {_option(best)} would take {_trade(seconds, longest, _area(best, steps), area)}"


def _trade(seconds: float, instead_seconds: float, area: float, instead_area: float) -> str:
    """Both figures of the option not taken, what speaks for it first."""
    areas = f"{area:.1f} device-seconds instead of {instead_area:.1f}"
    if seconds <= instead_seconds:
        return f"{show_seconds(seconds)} {'but' if area > instead_area else 'and'} {areas}"
    return f"{areas} {'but' if area < instead_area else 'and'} {show_seconds(seconds)}"


def _no_other(rejected: Sequence[Rejection]) -> str:
    """Options that take as long on as many devices as another are not in a problem, nor those not worth a trial: that
    there is no other says that none is better, and not that none fits."""
    better = "no other option that is known takes less time or fewer devices"
    if not rejected:
        return better
    first = rejected[0]
    return f"{better}; {first.technique} on {first.count} × {first.kind} does not fit: {first.reason}"


def _grouped(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    grouped: dict[_Key, list[_Item]] = defaultdict(list)
    for item in items:
        grouped[key(item)].append(item)
    return grouped


def _by_option(placements: Iterable[Placement]) -> dict[Option, list[Placement]]:
    return _grouped(placements, lambda placement: placement.option)


def _area(option: Option, steps: Iterable[tuple[int, ...]]) -> float:
    return sum(option.seconds(each) for each in steps) * option.count


def _longest(option: Option, steps: Iterable[tuple[int, ...]]) -> float:
    return max(option.seconds(each) for each in steps)


def _option(option: Option) -> str:
    reading = f", {option.feed_cores} cores reading" if option.feed_cores else ""
    approximate, _ = split_knobs(option.knobs)
    way = f"{option.technique} with {approximate}" if approximate else option.technique
    return f"{way} on {option.count} × {option.kind}{reading}"


def _origin(option: Option) -> str:
    return "measured" if option.measured else "predicted"
