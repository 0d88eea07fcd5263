"""How long the work that is left takes on so many devices of each kind of a market: what offers are made of."""

from collections.abc import Iterable, Mapping

from dovetail.control.state import State
from dovetail.planning.options.kinds import SHEETS
from dovetail.vocabulary import Task
from dovetail.vocabulary.markets import Market, Offer


def make_offers(
    state: State, markets: Iterable[Market], *, most: Mapping[str, int], more: Iterable[Task] = ()
) -> tuple[Offer, ...]:
    """What could be rented for what is left, and for `more` tasks of which the family is known: 1, 2, 4 devices and so
    on up to the `most` of each kind, as long as more end sooner. Of a kind on which nothing was measured it is taken
    that it is as fast as its data sheet says, next to one that was, or else just as fast."""
    steps = {task: (one.fingerprint.family, state.steps_left(task)) for task, one in state.known() if one.fingerprint}
    for each in more:
        if (one := state.ledger[each.identity]).fingerprint:
            last = each.stop.last_step(one.fingerprint.steps_per_epoch)
            steps[each.identity] = one.fingerprint.family, max(1, last - one.step)
    rates = _measured(state)
    offers = []
    for market in markets:
        lengths = [
            count * seconds for family, count in steps.values() if (seconds := _seconds(family, market.kind, rates))
        ]
        if not lengths:
            continue
        longest, total, before = max(lengths), sum(lengths), float("inf")
        for count in _doubled(min(most.get(market.kind, 0), len(lengths))):
            work = max(longest, total / count)
            if work < 0.99 * before:
                offers.append(Offer(market=market, count=count, work_seconds=work))
                before = work
    return tuple(offers)


def _measured(state: State) -> dict[tuple[str, str], float]:
    """Seconds a step on one device, by family and kind."""
    found: dict[tuple[str, str], float] = {}
    for each in state.ledger.profiles():
        if each.count == 1 and not each.knobs.get("members"):
            known = found.get((each.family, each.kind), float("inf"))
            found[each.family, each.kind] = min(known, each.step_seconds)
    return found


def _seconds(family: str, kind: str, rates: Mapping[tuple[str, str], float]) -> float:
    if (family, kind) in rates:
        return rates[family, kind]
    others = [(other, seconds) for (known, other), seconds in rates.items() if known == family]
    if not others:
        return 0.0
    other, seconds = others[0]
    if kind in SHEETS and other in SHEETS:
        return float(seconds * SHEETS[other].single_flops / SHEETS[kind].single_flops)
    return seconds


def _doubled(most: int) -> list[int]:
    counts = [1] if most else []
    while counts and counts[-1] * 2 <= most:
        counts.append(counts[-1] * 2)
    return counts if not counts or counts[-1] == most else [*counts, most]
