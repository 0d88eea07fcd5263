"""Measuring, carried out: as many orders at once as devices allow, next to whatever trains.

Knows which orders there are from `wanted`, and who is in their way from `room`. The loop begins them, waits for what
comes of them, and puts it on record.
"""

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from dovetail.control.measuring import wanted
from dovetail.control.measuring.room import in_the_way
from dovetail.control.orders import Orders
from dovetail.control.state import State
from dovetail.control.state.snapshot import unplaceable, without
from dovetail.engines import Engine, Order
from dovetail.planning import Trial, worthwhile

# Training makes room for measuring at most this often: whoever submits twenty tasks one by one stops it once or twice.
ROOM_SECONDS = 30.0


class Measurer:
    """Learns what planning needs of the tasks of a state. Called by the loop, from its thread.

    `begin` starts an order on free devices, `step` waits for whatever happens next and deals with it, `is_stopping`
    says whether nothing more is to begin.
    """

    def __init__(
        self,
        state: State,
        *,
        orders: Orders,
        engine: Engine,
        begin: Callable[[Order], None],
        step: Callable[[], None],
        is_stopping: Callable[[], bool],
    ) -> None:
        self.trials_left = 0
        self._seen: set[str] = set()
        self._asked: Counter[Trial] = Counter()
        self.is_stale = False  # whether something came that may have to be measured
        self._state, self._orders, self._engine = state, orders, engine
        self._begin, self._step, self._is_stopping = begin, step, is_stopping
        self._made_room_at, self._trying_since = -math.inf, 0.0

    def is_due(self) -> bool:
        """Whether to measure what has come, now: where that has to make room, not too often."""
        if not self.is_stale:
            return False
        return self._state.queues.idles() or self._state.now() >= self._made_room_at + ROOM_SECONDS

    def measure(self, *, everything: bool) -> None:
        """Each task's family, then the options that could matter to the plan and were not measured yet; with
        `everything`, all of them. Tasks that turn out to be impossible have failed, with the reason."""
        state, self.is_stale = self._state, False
        while not self._is_stopping() and (unknown := self._unknown()):
            self._run_all(unknown)
            asked = [member.task.identity for order in unknown for member in order["members"]]
            self._seen.update(task for task in asked if state.ledger[task].fingerprint is not None)
        state.fail(wanted.impossible(state.workload, state.ledger))
        self._trying_since = state.now()
        while not self._is_stopping() and (trials := self._trials(everything)):
            self.trials_left = len(trials)
            self._run_all(self._orders_of(trials), meanwhile=functools.partial(self._meanwhile, set(trials)))
        self.trials_left = 0
        state.fail(wanted.impossible(state.workload, state.ledger))

    def _unknown(self) -> list[wanted.Fields]:
        state = self._state
        return wanted.fingerprints(state.tasks, state.ledger, state.cluster, seen=self._seen)

    def _meanwhile(self, asked: set[Trial]) -> Iterable[wanted.Fields]:
        """What is worth a trial already on a device that would idle until the last of the others is through. Of one
        device only: whether more are worth it all families together say."""
        known = {profile.family for profile in self._state.ledger.profiles()}
        missing = [trial for trial in self._missing() if trial not in asked and trial.family in known]
        found = [trial for trial in self._worthwhile(missing) if trial.count == 1]
        asked.update(found)
        return self._orders_of(found)

    def _orders_of(self, trials: Iterable[Trial]) -> list[wanted.Fields]:
        trials = list(trials)
        self._asked.update(trials)
        return wanted.trial_orders(trials, self._state.tasks, self._state.ledger, self._state.cluster)

    def _trials(self, everything: bool) -> Sequence[Trial]:
        missing = self._missing()
        return missing if everything or not missing else self._worthwhile(missing)

    def _missing(self) -> list[Trial]:
        state = self._state
        keep = state.is_exact_enough
        missing = wanted.missing_trials(state.tasks, state.ledger, state.cluster, may=state.may, keep=keep)
        # One that is asked for again and again with neither a profile nor a rejection to show has no answer.
        return [trial for trial in missing if self._asked[trial] <= state.settings.retries + 1]

    def _worthwhile(self, missing: Sequence[Trial]) -> Sequence[Trial]:
        state, problem = self._state, self._state.problem()
        left_seconds = state.settings.trial_seconds - (state.now() - self._trying_since)
        return worthwhile(missing, without(problem, unplaceable(problem)), budget_seconds=left_seconds)

    def _run_all(
        self, fields: Iterable[wanted.Fields], *, meanwhile: Callable[[], Iterable[wanted.Fields]] = tuple
    ) -> None:
        """Run measuring orders, as many at once as devices allow: options are measured as they will run,
        with neighbours, since neighbours share memory and caches. Where training has all devices, some of it is saved
        and makes room for one order at a time: what nothing is known of cannot be planned. `meanwhile` gives what could
        be measured besides where devices idle; it is asked whenever something was learned."""
        state, asked = self._state, set[str]()
        waiting = [self._orders.new(**each) for each in fields]
        cluster, learned = state.cluster, state.ledger.measured
        while waiting or self._is_measuring():
            if state.cluster is not cluster:
                waiting = []  # devices have left: what is wanted on the others is asked for anew
            waiting = [order for order in waiting if not self._began(order)]
            if not waiting and state.queues.idles() and learned != state.ledger.measured:
                learned = state.ledger.measured
                more = [self._orders.new(**each) for each in meanwhile()]
                waiting = [order for order in more if not self._began(order)]
            if waiting and not self._is_measuring():
                self._make_room(waiting[0], asked)
            if state.running:
                self._step()

    def _is_measuring(self) -> bool:
        return any(running.placement is None for running in self._state.running.values())

    def _began(self, order: Order) -> bool:
        """Begin an order if there is room for it now; whether it waits no more, also because nobody wants it."""
        state = self._state
        if self._is_stopping() or all(state.ledger.has_ended(member.task.identity) for member in order.members):
            return True
        devices = self._on_one_node(state.queues.free(state.cluster.device(order.devices[0]).kind), len(order.devices))
        if devices is None:
            return False
        state.queues.occupy(devices, None)
        self._begin(dataclasses.replace(order, devices=devices))
        return True

    def _on_one_node(self, devices: list[str], count: int) -> tuple[str, ...] | None:
        by_node: dict[str, list[str]] = {}
        for device in devices:
            by_node.setdefault(self._state.cluster.device(device).node, []).append(device)
        return next((tuple(found[:count]) for found in by_node.values() if len(found) >= count), None)

    def _make_room(self, order: Order, asked: set[str]) -> None:
        """Ask those in the way of an order to save and end, who were not asked before."""
        for name in set(in_the_way(order, self._state)) - asked:
            asked.add(name)
            self._made_room_at = self._state.now()
            self._engine.stop(name, reason="it makes room to measure what has come")
