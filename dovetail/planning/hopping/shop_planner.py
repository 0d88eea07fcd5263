"""Plans of tours by randomised list scheduling: a device that falls free takes the waiting task with the most left to
visit; many such lists are tried, each a small change of the best so far, until one is near enough to the bound.

A list schedule of an open shop is at most twice as long as the best, and mostly a few percent (race.md's anchor). Two
rules are tried: a device that takes what it can at once, and one that leaves a visit to a device that will have ended
it sooner, which matters where a shard can be visited from afar. Work is limited by a count of dispatched visits, so
that the same shop has the same plan on every machine.
"""

import heapq
import math
from collections.abc import Sequence

from dovetail.planning.hopping.open_shop import OpenShop, Stay, Tours
from dovetail.planning.hopping.tour_bounds import shop_bound

#: How near to the bound is near enough: what is measured of a visit is not known any better.
NEAR = 0.005
#: How many visits are dispatched before the best plan so far has to do.
MOST_VISITS = 100_000
# Of small shops more lists are no better.
_MOST_TRIES = 400
# How much the priorities of a first try vary, and those of a change of the best.
_SPREAD, _CHANGE = 0.3, 0.1


def plan_tours(shop: OpenShop, *, near: float = NEAR, most_visits: int = MOST_VISITS, seed: int = 0) -> Tours:
    """The best plan that was found.

    >>> from dovetail.planning.hopping.open_shop import ShopDevice, Tour
    >>> where = {"s0": {"n0:0": 1.0}, "s1": {"n1:0": 1.0}}
    >>> tours = tuple(Tour(task=name, epochs=(("s0", "s1"),), visit_seconds=where) for name in "abcd")
    >>> devices = (ShopDevice(name="n0:0", node="n0"), ShopDevice(name="n1:0", node="n1"))
    >>> plan = plan_tours(OpenShop(devices=devices, tours=tours))
    >>> plan.makespan_seconds, plan.bound_seconds
    (4.0, 4.0)
    """
    import numpy as np  # which `import dovetail.control` should not load

    bound, shop_size = shop_bound(shop), max(1, shop.visits)
    dispatch = _ShopLists(shop)
    generator = np.random.default_rng(seed)
    factors = np.ones(shop_size)
    best: list[Stay] = []
    best_factors, best_seconds = factors, math.inf
    tries = min(_MOST_TRIES, max(4, most_visits // (shop_size * dispatch.choices)))
    for number in range(tries):
        for patient in (False, True) if dispatch.choices > 1 else (False,):
            stays = dispatch.run(factors.tolist(), patient=patient)
            seconds = max((stay.end_seconds for stay in stays), default=0.0)
            if seconds < best_seconds:
                best, best_factors, best_seconds = stays, factors, seconds
        if best_seconds <= bound * (1 + near):
            break
        # Half of the tries begin anew, so that a list that leads nowhere is left behind.
        spread, base = (_SPREAD, np.ones(shop_size)) if number % 2 else (_CHANGE, best_factors)
        factors = base * np.exp(spread * generator.standard_normal(shop_size))
    return Tours(stays=tuple(sorted(best, key=lambda stay: (stay.start_seconds, stay.device))), bound_seconds=bound)


class _ShopLists:
    """One list schedule after another of the same shop, which is read once."""

    def __init__(self, shop: OpenShop) -> None:
        self._shop = shop
        self._nodes = [device.node for device in shop.devices]
        numbers = {device.name: number for number, device in enumerate(shop.devices)}
        self._shards: dict[str, int] = {}
        for tour in shop.tours:
            for shard in tour.visit_seconds:
                self._shards.setdefault(shard, len(self._shards))
        tables: dict[int, dict[int, dict[int, float]]] = {}
        for tour in shop.tours:
            if id(tour.visit_seconds) not in tables:
                tables[id(tour.visit_seconds)] = {
                    self._shards[shard]: {numbers[device]: seconds for device, seconds in where.items()}
                    for shard, where in tour.visit_seconds.items()
                }
        self._seconds = [tables[id(tour.visit_seconds)] for tour in shop.tours]
        self._least = [{s: min(where.values()) for s, where in table.items()} for table in self._seconds]
        self._epochs = [[[self._shards[s] for s in epoch] for epoch in tour.epochs if epoch] for tour in shop.tours]
        self._epoch_numbers = [[n for n, epoch in enumerate(tour.epochs) if epoch] for tour in shop.tours]
        self._names = list(self._shards)
        self._on: list[list[int]] = [[] for _ in shop.devices]
        for number in range(len(self._names)):
            for device in sorted({each for table in tables.values() for each in table.get(number, ())}):
                self._on[device].append(number)
        self.choices = max((len(where) for table in tables.values() for where in table.values()), default=1)
        """How many devices can hold a visit, at most: so many times longer takes it to choose."""

    def run(self, factors: Sequence[float], *, patient: bool) -> list[Stay]:
        """The list schedule by priorities of what each task has left, times a factor for each visit."""
        return _ShopListRun(self, factors, patient=patient).stays


class _ShopListRun:
    """The state of one list schedule, by numbers of tasks, shards and devices."""

    def __init__(self, dispatch: _ShopLists, factors: Sequence[float], *, patient: bool) -> None:
        shop = dispatch._shop
        self._dispatch, self._shop, self._patient = dispatch, shop, patient
        self._factor: list[dict[tuple[int, int], float]] = []
        place = 0
        for epochs in dispatch._epochs:
            own = {}
            for number, epoch in enumerate(epochs):
                for shard in epoch:
                    own[number, shard] = factors[place]
                    place += 1
            self._factor.append(own)
        self._epoch = [0] * len(shop.tours)
        self._next = [0] * len(shop.tours)  # in the order of an ordered tour
        self._at = [tour.at for tour in shop.tours]
        self._ready = [tour.ready_seconds for tour in shop.tours]
        self._left = [
            sum(least[shard] for epoch in epochs for shard in epoch)
            for least, epochs in zip(dispatch._least, dispatch._epochs, strict=True)
        ]
        self._free = [device.free_seconds for device in shop.devices]
        self._hops: dict[tuple[int, str, str], float] = {}
        self._copied: set[tuple[str, str]] = set()
        # Who wants a shard now: tasks by shard, in their order, so that equals are taken in turn.
        self._wants: list[dict[int, None]] = [{} for _ in dispatch._names]
        self._open: list[set[int]] = [set() for _ in shop.tours]
        self.stays: list[Stay] = []
        for task in range(len(shop.tours)):
            self._want(task)
        self._serve()

    def _want(self, task: int) -> None:
        """Let a task want what it may visit next."""
        epochs, epoch = self._dispatch._epochs[task], self._epoch[task]
        if epoch >= len(epochs):
            return
        if self._shop.tours[task].is_ordered:
            self._open[task] = {epochs[epoch][self._next[task]]}
        else:
            self._open[task] = set(epochs[epoch])
        for shard in self._open[task]:
            self._wants[shard][task] = None

    def _serve(self) -> None:
        waking = [(free, device) for device, free in enumerate(self._free)]
        heapq.heapify(waking)
        asleep: set[int] = set()
        left = self._shop.visits
        while left:
            assert waking, "a task that is nowhere else is on its way"
            now, device = heapq.heappop(waking)
            if now < self._free[device]:
                continue  # it was woken for something that it has taken since
            chosen, later = self._choose(device, now)
            if chosen is None:
                asleep.add(device)
                if later < math.inf:
                    heapq.heappush(waking, (later, device))
                continue
            taker = chosen[2]
            asleep.discard(taker)
            end = self._take(taker, chosen[:2], now)
            left -= 1
            heapq.heappush(waking, (end, taker))
            if taker != device:
                heapq.heappush(waking, (now, device))
            # Whoever found nothing may want what this task leaves behind it, or has open now.
            for other in asleep:
                heapq.heappush(waking, (end, other))

    def _choose(self, device: int, now: float) -> tuple[tuple[int, int, int] | None, float]:
        """The task, the shard and the device that takes them now, which is this one unless a faster one idles; or None
        and when something arrives that it could take."""
        node, best, chosen, later = self._dispatch._nodes[device], -math.inf, None, math.inf
        for shard in self._dispatch._on[device]:
            for task in self._wants[shard]:
                arrives = self._ready[task]
                at = self._at[task]
                if at and at != node:
                    arrives += self._hop(task, at, node)
                if arrives > now:
                    later = min(later, arrives)
                    continue
                priority = self._left[task] * self._factor[task][self._epoch[task], shard]
                if priority > best and device in self._dispatch._seconds[task][shard]:
                    begins, taker = self._soonest(task, shard, device, now) if self._patient else (now, device)
                    if begins > now:
                        later = min(later, begins)
                        continue
                    best, chosen = priority, (task, shard, taker)
        return chosen, later

    def _soonest(self, task: int, shard: int, device: int, now: float) -> tuple[float, int]:
        """When and on which device a visit would end first, as far as is known; this one's where another's is no
        sooner."""
        where = self._dispatch._seconds[task][shard]
        end, begins, taker = now + where[device] + self._copy_seconds(task, shard, device), now, device
        for other, seconds in where.items():
            seconds += self._copy_seconds(task, shard, other)
            arrives = self._ready[task] + self._hop(task, self._at[task], self._dispatch._nodes[other])
            start = max(now, self._free[other], arrives)
            if start + seconds < end:
                end, begins, taker = start + seconds, start, other
        return begins, taker

    def _hop(self, task: int, at: str, node: str) -> float:
        size = self._shop.tours[task].state_bytes
        known = self._hops.get((size, at, node))
        if known is None:
            known = self._hops[size, at, node] = self._shop.hop_seconds(size, at, node)
        return known

    def _copy_seconds(self, task: int, shard: int, device: int) -> float:
        """What a visit takes longer because its node has no copy yet."""
        source = self._shop.tours[task].copied.get(self._dispatch._names[shard])
        if source is None:
            return 0.0
        copy, node = self._shop.copies[source], self._dispatch._nodes[device]
        return 0.0 if node in copy.nodes or (source, node) in self._copied else copy.seconds

    def _take(self, device: int, chosen: tuple[int, int], now: float) -> float:
        """Put a visit on record; gives its end."""
        (task, shard), dispatch = chosen, self._dispatch
        seconds = dispatch._seconds[task][shard][device] + self._copy_seconds(task, shard, device)
        if source := self._shop.tours[task].copied.get(dispatch._names[shard]):
            self._copied.add((source, dispatch._nodes[device]))
        stay = Stay(
            task=self._shop.tours[task].task,
            epoch=dispatch._epoch_numbers[task][self._epoch[task]],
            shard=dispatch._names[shard],
            device=self._shop.devices[device].name,
            start_seconds=now,
            duration_seconds=seconds,
        )
        self.stays.append(stay)
        self._free[device] = self._ready[task] = end = stay.end_seconds
        self._at[task] = dispatch._nodes[device]
        self._left[task] -= dispatch._least[task][shard]
        del self._wants[shard][task]
        self._open[task].discard(shard)
        self._next[task] += 1
        if not self._open[task]:
            if self._next[task] == len(dispatch._epochs[task][self._epoch[task]]):
                self._epoch[task] += 1
                self._next[task] = 0
            self._want(task)
        return end
