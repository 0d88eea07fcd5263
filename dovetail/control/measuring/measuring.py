"""Measuring, a source of orders beside deciding: as many at once as devices allow, next to whatever trains.

Knows which orders there are from `wanted`, and who is in their way from `room`. The loop begins them, waits for what
comes of them, and puts it on record.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Sequence

from dovetail.control.measuring import wanted
from dovetail.control.measuring.room import in_the_way
from dovetail.control.orders import Orders
from dovetail.control.state import Running, State
from dovetail.control.state.snapshot import unplaceable, with_more, without
from dovetail.engines import Order
from dovetail.planning import Trial, worthwhile
from dovetail.vocabulary import TaskId

# Training makes room for measuring at most this often: whoever submits twenty tasks one by one stops it once or twice.
ROOM_SECONDS = 30.0
# So long devices may idle for one order before what is known is trained on them.
PATIENCE_SECONDS = 60.0
# Of more tasks than this it is not asked anew with each that comes which trials are worth their time.
MANY = 1000


class Measuring:
    """What planning needs to learn of the tasks of a state. Called by the loop alone, from its thread.

    The loop begins what is `ready`, stops what is `unwanted`, and decides nothing while measuring `holds`. That is
    until all is learned, since options of all families are weighed against each other. Once a worker was lost on the
    way, or devices idle because one order takes long, nobody waits any longer: half of the devices go on measuring,
    first what nothing has happened to, and what is known is trained on the others.
    """

    def __init__(self, state: State, *, orders: Orders) -> None:
        self.is_stale = False  # whether something came that may have to be measured
        self._state, self._orders = state, orders
        self._is_shared = self._everything = self._has_begun = False
        self._waiting: list[Order] = []
        self._cluster, self._learned = state.cluster, -1
        self._built: set[TaskId] = set()
        self._asked: Counter[Trial] = Counter()
        self._batch: set[Trial] = set()  # those under way
        self._told: set[str] = set()
        self._useless: tuple[object, ...] = ()  # what was known when no trial was worth its time
        self._made_room_at, self._trying_since = -math.inf, math.nan

    def begin(self, *, everything: bool = False) -> None:
        """Find out what is to be learned of the tasks there are: each one's family, then the options that could matter
        to the plan and were not measured yet; with `everything`, all of them."""
        self._state.is_measuring, self._everything = self._state.measures, everything
        self.is_stale = self._is_shared = self._has_begun = False
        self._waiting, self._told, self._trying_since = [], set(), math.nan

    @property
    def is_active(self) -> bool:
        """Whether something is still to be learned."""
        return self._state.is_measuring

    @property
    def trials_left(self) -> int:
        """How many trials are under way or to come, of those that are wanted now."""
        running = [each.order for each in self._state.running.values()] if self._waiting else []
        return sum(order.purpose == "measure" for order in (*self._waiting, *running))

    def holds(self) -> bool:
        """Whether what is being learned is worth waiting for before anything else is decided."""
        return self.is_active and not self._is_shared

    def wake_seconds(self) -> float:
        """When devices will have idled long enough for what is under way."""
        if not self._state.queues.idles():
            return math.inf
        return min((each.started_at for each in self._under_way()), default=math.inf) + PATIENCE_SECONDS

    def lost(self) -> None:
        """A worker was lost while it measured: devices are shared with training from here on."""
        self._is_shared = True

    def ready(self, *, is_idle: bool = False) -> list[Order]:
        """The orders that are to begin now: their devices are free and count as busy from here on. `is_idle` says that
        nothing trains or is about to."""
        if self.is_stale and not self.is_active and self._is_time():
            self.begin()
        # A program that hangs must not hold up all others.
        self._is_shared = self._is_shared or self._state.now() >= self.wake_seconds()
        if self._state.cluster is not self._cluster:
            # Devices have come or gone: what is wanted on those that are left is asked for anew.
            self._cluster, self._waiting = self._state.cluster, []
        begun: list[Order] = []
        while self.is_active:
            if not (self._waiting or begun or self._busy()):
                self._ask()
            elif not self._waiting:
                if not self._state.queues.idles() or self._learned == self._state.ledger.measured:
                    break
                self._ask_meanwhile()
            begun += self._place_all(self._busy(begun), is_idle=is_idle)
            if self._waiting:
                break
        return begun

    def unwanted(self) -> Iterator[tuple[str, str]]:
        """Where training has all devices, the placements that are to save and make room for one order at a time, each
        with the reason: what nothing is known of cannot be planned."""
        order = next(iter(self._waiting), None)
        if order is None or self._is_shared or self._busy():
            return
        for name in set(in_the_way(order, self._state)) - self._told:
            self._told.add(name)
            self._made_room_at = self._state.now()
            yield name, "it makes room to measure what has come"

    def news(self) -> str:
        """Why measuring calls for another decision, now that it is over; nothing where it had nothing to do."""
        found, self._has_begun = self._has_begun and not self.is_active, self._has_begun and self.is_active
        return "what came was measured" if found else ""

    # What is asked for

    def _is_time(self) -> bool:
        """Whether to look now: where measuring has to make room, not too often."""
        return self._state.queues.idles() or self._state.now() >= self._made_room_at + ROOM_SECONDS

    def _ask(self) -> None:
        """Ask for what is to be learned next: families, then options. What was lost before comes last, and of its
        families is learned along with the options of the others. Of options, those of the largest families come first:
        should a worker be lost, most tasks can be placed by then."""
        state = self._state
        self._learned = state.ledger.measured
        unknown = wanted.fingerprints(state.tasks, state.ledger, state.cluster, seen=self._seen())
        self._built.update(member.task.identity for each in unknown for member in each["members"])
        orders = [self._orders.new(**each) for each in unknown]
        if not orders or all(map(self._was_lost, orders)):
            state.fail(wanted.impossible(state.workload, state.ledger))
            self._batch.clear()
            orders = [*self._orders_of(self._trials()), *orders]
        sizes = Counter(one.fingerprint.family for _, one in state.known() if one.fingerprint)
        self._waiting = sorted(orders, key=lambda order: (self._was_lost(order), -sizes[order.family]))
        if not orders:
            state.is_measuring = False

    def _ask_meanwhile(self) -> None:
        """Ask for what is worth a trial already on a device that would idle until the last of the others is through. Of
        one device only: whether more are worth it all families together say."""
        self._learned = self._state.ledger.measured
        known = {profile.family for profile in self._state.ledger.profiles()}
        missing = [trial for trial in self._missing() if trial.family in known and trial not in self._batch]
        self._waiting = self._orders_of([trial for trial in self._worthwhile(missing) if trial.count == 1])

    def _seen(self) -> set[TaskId]:
        """The tasks that were built since this controller began, whatever versions their workers have."""
        return {task for task in self._built if self._state.ledger[task].fingerprint is not None}

    def _orders_of(self, trials: Sequence[Trial]) -> list[Order]:
        self._asked.update(trials)
        self._batch.update(trials)
        state = self._state
        fields = wanted.trial_orders(trials, state.tasks, state.ledger, state.cluster)
        return [self._orders.new(**each) for each in fields]

    def _trials(self) -> Sequence[Trial]:
        if math.isnan(self._trying_since):
            self._trying_since = self._state.now()
        missing = self._missing()
        return missing if self._everything or not missing else self._worthwhile(missing)

    def _missing(self) -> list[Trial]:
        state = self._state
        keep = state.is_exact_enough
        missing = wanted.missing_trials(
            state.tasks,
            state.ledger,
            state.cluster,
            may=state.may,
            keep=keep,
            expected=state.expected,
            allowed=state.allowed(),
        )
        # One that is asked for again and again with neither a profile nor a rejection to show has no answer.
        return [trial for trial in missing if self._asked[trial] <= state.settings.retries + 1]

    def _worthwhile(self, missing: Sequence[Trial]) -> Sequence[Trial]:
        """Of these trials those that could shorten the plan. What runs has its place: nothing is tried for it."""
        state, sizes = self._state, self._state.sizes()
        # A search's tasks were counted before they came.
        is_counted = state.to_come is not None
        known = (*missing, state.ledger.measured, *(() if is_counted else sizes.items()))
        # To look at thousands takes a second; what was of no use to them stays so until something else is known.
        if not missing or (known == self._useless and (is_counted or sum(sizes.values()) > MANY)):
            return []
        problem = with_more(state.problem(), state.to_come or 0)
        left_seconds = state.settings.trial_seconds - (state.now() - self._trying_since)
        wait = {family.measured_as for family in problem.families}
        missing = [trial for trial in missing if trial.family in wait]
        found = worthwhile(missing, without(problem, unplaceable(problem)), budget_seconds=left_seconds)
        self._useless = () if found else known
        return found

    # Where it goes

    def _busy(self, begun: Sequence[Order] = ()) -> int:
        """How many devices measure, with those of orders that are to begin."""
        return sum(len(order.devices) for order in (*(each.order for each in self._under_way()), *begun))

    def _under_way(self) -> list[Running]:
        return [each for each in self._state.running.values() if each.placement is None]

    def _was_lost(self, order: Order) -> bool:
        return any(self._state.ledger[member.task.identity].losses for member in order.members)

    def _has_ended(self, order: Order) -> bool:
        return all(self._state.ledger.has_ended(member.task.identity) for member in order.members)

    def _place_all(self, busy: int, *, is_idle: bool) -> list[Order]:
        """Take out of those that wait what there are devices for, and that measuring may have; `busy` measure now."""
        half, begun, waiting = len(self._cluster.devices) // 2, list[Order](), list[Order]()
        for order in self._waiting:
            if self._has_ended(order):
                continue
            most = half if self._was_lost(order) else max(1, half)
            may = is_idle or not self._is_shared or busy + len(order.devices) <= most
            devices = self._free(order) if may else None
            if devices is None:
                waiting.append(order)
                continue
            self._state.queues.occupy(devices, None)
            busy += len(devices)
            begun.append(dataclasses.replace(order, devices=devices))
        self._waiting, self._has_begun = waiting, self._has_begun or bool(begun)
        return begun

    def _free(self, order: Order) -> tuple[str, ...] | None:
        """Free devices of one node for an order, or of as many as it goes over, if there are enough."""
        kind = self._state.cluster.device(order.devices[0]).kind
        return self._state.queues.free_together(kind, len(order.devices), order.nodes)
