"""From placements to orders: what an engine is told to do, and where its checkpoints go."""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

from dovetail.control.state import State
from dovetail.engines import MemberOrder, Order
from dovetail.planning import spec_of
from dovetail.store import Store, checkpoints_of, folder_of, raise_fence
from dovetail.vocabulary import Event, Option, Placement, TaskId
from dovetail.vocabulary.events import AttemptStarted, Warned


class Orders:
    """Makes orders, each with a name of its own."""

    def __init__(self, state: State, *, store: Store) -> None:
        self._state, self._home = state, store.home
        self._numbers = itertools.count(1)
        self._measured: dict[int, tuple[Option, Option]] = {}

    def new(self, **fields: Any) -> Order:
        """An order with these fields and a name of its own."""
        name = f"{self._state.now():.3f}-{next(self._numbers)}"
        return Order(name=name, exact=self._state.settings.exact, **fields)

    def train(self, placement: Placement) -> Order:
        """An order that trains a placement's tasks; from here on no earlier attempt at them can save anything."""
        settings = self._state.settings
        return self.new(
            purpose="train",
            members=tuple([self._member(task, placement) for task in placement.tasks]),
            devices=placement.devices,
            technique=placement.option.technique,
            knobs=placement.option.knobs,
            feed_cores=placement.option.feed_cores,
            save_every_seconds=settings.save_every_seconds,
            save_every_steps=settings.save_every_steps,
            keep_count=settings.keep_count,
            keep_bytes=settings.keep_bytes,
            predicted_seconds=placement.duration_seconds,
        )

    def started(self, order: Order, placement: Placement) -> list[Event]:
        """The events that put the start of an order on record."""
        ledger = self._state.ledger
        return [
            ledger.event(
                AttemptStarted,
                member.task.identity,
                attempt=member.attempt,
                placement=order.name,
                devices=order.devices,
                threads=spec_of(order.technique).threads(len(order.devices)),
                step=ledger[member.task.identity].saved_step,
                until=member.until_step,
                predicted_seconds=placement.duration_seconds,
                option=self._as_measured(placement),
            )
            for member in order.members
        ]

    def _as_measured(self, placement: Placement) -> Option:
        """A placement's option, of the families that were measured. The same few start again and again, in the rounds
        of a long simulation tens of thousands of times, so it is made once."""
        option, ledger = placement.option, self._state.ledger
        known = self._measured.get(id(option))
        if known is None:
            found = [ledger[task].fingerprint for task in placement.tasks]
            families = tuple(each.family for each in found if each is not None)
            plain = dataclasses.replace(option, families=families) if len(families) == len(found) else option
            # Held along with it, an option cannot lend its address to another.
            known = self._measured[id(option)] = option, plain
        return known[1]

    def _member(self, task: TaskId, placement: Placement) -> MemberOrder:
        until, final = self._state.target(task)
        evaluates, left = "", tuple[str, ...]()
        if placement.shard:
            visited = self._state.ledger[task].saved_step + placement.steps[0]
            until, final = min(until, visited), final and visited >= until
            evaluates = "" if placement.steps[0] else placement.shard
            left = tuple(name for name in self._state.unevaluated(task, step=until) if name != evaluates)
        attempt = self._state.ledger[task].attempt + 1
        fingerprint = self._state.ledger[task].fingerprint
        family = fingerprint.family if fingerprint is not None else ""
        feed = self._state.ledger.feeds.get(family, ())
        return MemberOrder(
            task=self._state.tasks[task],
            attempt=attempt,
            until_step=until,
            final=final and not left,
            directory=self._directory(task, attempt),
            anew_since_attempt=self._state.ledger[task].anew_since_attempt,
            feed=feed,
            computing_seconds=self._state.ledger.computing_seconds(family, placement.option) if feed else 0.0,
            visits=bool(placement.shard),
            shard_orders=self._shard_orders(task),
            evaluates=evaluates,
            evaluated=self._evaluated(task, until) if evaluates else {},
        )

    def _evaluated(self, task: TaskId, step: int) -> Mapping[str, Mapping[str, tuple[float, float]]]:
        """What evaluating on shards has given so far after a step."""
        one = self._state.ledger[task]
        return dict(one.evaluated) if one.evaluated_step == step else {}

    def _shard_orders(self, task: TaskId) -> tuple[tuple[str, ...], ...]:
        chosen = self._state.ledger[task].shard_orders
        return tuple(chosen.get(epoch, ()) for epoch in range(max(chosen, default=-1) + 1))

    def directory(self, task: TaskId) -> str:
        """Where a task's checkpoints are; empty where the store has no home."""
        return "" if self._home is None else str(checkpoints_of(self._home.resolve()) / task)

    def _directory(self, task: TaskId, attempt: int) -> str:
        if self._home is None:
            return ""
        directory = folder_of(self.directory(task))
        try:
            raise_fence(directory, attempt)
        except OSError as error:
            # The worker meets the same trouble when it saves, and fails this one task with it.
            ledger = self._state.ledger
            ledger.record([ledger.event(Warned, task, message=f"{directory} must be writable: {error}")])
        return str(directory)
