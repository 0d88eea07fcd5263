"""What follows from a fault: whether and when a task is tried again, which option is tried no more, who is set aside.

A loss is tried again: at once the first time, since most are bad luck, then after ever longer pauses. Whoever is lost
more often in a row than the budget allows, with nothing newly saved in between, is set aside with the reason, and the
others go on. A placement that ran out of memory rejects its option, as a trial would have: the task is planned anew
with what is left, at the same batch (in more parts one after another, with activations computed again, sharded,
spilled, on another kind), and fails with every reason where nothing is. That is no loss of the task's own, and uses up
none of its budget. A trial that is lost again and again rejects its option, too; one that ends its worker's process
twice in the same way does so at once. A loss of a gang says not whose fault it was: after two in a row its members are
tried alone, and only what is lost alone uses up a budget. Knows events and the ledger; starts and stops nothing.
"""

import dataclasses
import math
from collections.abc import Callable

from dovetail.control.state.ledger import Ledger
from dovetail.engines import Order
from dovetail.metrics.progress import GANG_LOSSES
from dovetail.planning.techniques import spec_of
from dovetail.planning.techniques.resident import in_words
from dovetail.vocabulary import Event, Rejection, TaskId
from dovetail.vocabulary.approximations import split_knobs
from dovetail.vocabulary.events import AttemptLost, BatchDivided, OptionRejected, TaskFailed, Warned

# The pause before the second retry; each further one is twice as long, up to the most.
PAUSE_SECONDS = 1.0
MOST_PAUSE_SECONDS = 60.0
# Bad luck hardly ends a process twice in the same way.
SAME_ENDINGS = 2


def pause_seconds(losses: int) -> float:
    """How long to wait after so many losses in a row.

    >>> [pause_seconds(losses) for losses in (1, 2, 3, 4, 20)]
    [0.0, 1.0, 2.0, 4.0, 60.0]
    """
    return 0.0 if losses < 2 else min(PAUSE_SECONDS * 2.0 ** min(losses - 2, 30), MOST_PAUSE_SECONDS)


class Recovery:
    """Decides what follows from faults. Called by the loop alone.

    `kind_of` gives the kind of a device by its name; with `exact` batches are not taken in parts, which rounds
    otherwise than whole ones.

    >>> from dovetail.store import Store
    >>> Recovery(Ledger(Store(None, write=True), now=lambda: 0.0), now=lambda: 0.0, kind_of=str, retries=3).waits("a")
    False
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        now: Callable[[], float],
        kind_of: Callable[[str], str],
        retries: int,
        exact: bool = False,
    ) -> None:
        self._ledger, self._now, self._kind_of, self._retries = ledger, now, kind_of, retries
        self._exact = exact
        # Those of which the ledger says so, at hand: who is asked of all tasks at every decision must not look at all.
        # None waits longer than any pause is, though the machine's clock was set back since.
        latest = now() + MOST_PAUSE_SECONDS
        self._until = {task: min(at, latest) for task, at in ledger.retries() if at > now()}

    def waits(self, task: TaskId) -> bool:
        """Whether a task is not to be tried again just now."""
        return task in self._until

    def alone(self, task: TaskId) -> bool:
        """Whether a task is to run with no other in a gang, since gangs with it were lost."""
        return self._ledger[task].alone

    def wake_seconds(self) -> float:
        """When the first of those that wait may be tried again, on the engine's clock; infinite: none waits."""
        return min(self._until.values(), default=math.inf)

    def ripen(self) -> bool:
        """Let those go whose pause is over; whether there were any."""
        now = self._now()
        ripe = [task for task, until in self._until.items() if until <= now]
        for task in ripe:
            del self._until[task]
        return bool(ripe)

    def accept(self, event: TaskFailed | AttemptLost, order: Order | None) -> list[Event]:
        """What a failure or a loss of an order's task is put on record as."""
        if order is None or not event.attempt:
            # What measures is tried again at once: its orders wait for one another, and nobody else should.
            return [event]
        if isinstance(event, AttemptLost):
            return [self._counted(event, order)]
        if event.cause == "memory":
            reason = f"ran out of memory while training{_how(order)}: {event.reason}"
            return self._without_option(event, order, reason)
        if event.cause == "refused" and _how(order):
            return self._without_option(event, order, f"cannot be trained{_how(order)}: {event.reason}")
        return [event]

    def after_loss(self, event: AttemptLost, order: Order | None) -> list[Event]:
        """What a loss that is on record leads to: another try, maybe later; or its end, or that of a trial's option."""
        one = self._ledger[event.task]
        if event.of_option:
            return []
        is_same = not event.attempt and bool(event.ending) and one.endings >= SAME_ENDINGS
        if event.in_gang or (one.losses <= self._retries and not is_same):
            if event.again_in_seconds:
                self._until[event.task] = one.retry_at_seconds
            return self._after_gang(event.task) if event.in_gang else []
        reason = (
            f"its program ended its worker {one.endings} times in the same way: {event.reason}"
            if is_same
            else f"a task may be lost {self._retries} times in a row without anything newly saved; "
            f"this was loss {one.losses}: {event.reason}"
        )
        if order is not None and order.purpose == "measure":
            # The option's fault until shown otherwise: others are tried.
            return self._rejected(event, order, f"its trial was lost each time: {reason}", lost=True)
        return [self._ledger.event(TaskFailed, event.task, reason=reason, log=event.log)]

    def _after_gang(self, task: TaskId) -> list[Event]:
        """A gang was lost with this member: it is tried alone once that has happened again."""
        losses = self._ledger[task].gang_losses
        if losses != GANG_LOSSES:
            return []
        message = (
            f"lost {losses} times in a row together with others: tried alone from now on, to see whose fault it is"
        )
        return [self._ledger.event(Warned, task, message=message)]

    def _without_option(self, event: TaskFailed, order: Order, reason: str) -> list[Event]:
        """The option is tried no more, the task is planned anew; where its family is not known, that is a loss."""
        lost = AttemptLost(
            task=event.task, attempt=event.attempt, at_seconds=event.at_seconds, reason=reason, log=event.log
        )
        rejected = self._rejected(event, order, reason)
        if not rejected:
            return [self._counted(lost, order)]
        return [*rejected, *self._next_rung(event, order), dataclasses.replace(lost, of_option=True)]

    def _next_rung(self, event: TaskFailed, order: Order) -> list[Event]:
        """That the same batches are offered in another way, with less held at once, where that may help."""
        ladder = spec_of(order.technique).ladder
        if ladder is None:
            return []
        refused = event.cause == "refused"
        approximate, own = split_knobs(order.knobs)
        knobs = ladder.next_rung(own, exact=self._exact, refused=refused, smallest=event.smallest)
        if knobs is None:
            return []
        divided = BatchDivided(
            task=event.task,
            attempt=event.attempt,
            at_seconds=event.at_seconds,
            family=self._family(event.task, order),
            technique=order.technique,
            device_kind=self._kind_of(order.devices[0]),
            count=len(order.devices),
            microbatches=knobs.get("microbatches", 1),
            recompute=knobs.get("recompute", False),
            message=f"ran out of memory: from now on it may be trained with {in_words(knobs)}",
            approximate=approximate,
        )
        return [divided]

    def _counted(self, lost: AttemptLost, order: Order) -> AttemptLost:
        """A loss with whose it is, and how long its task rests."""
        one, in_gang = self._ledger[lost.task], len(order.members) > 1
        pause = pause_seconds(one.losses + 1)
        return dataclasses.replace(lost, in_gang=in_gang, again_in_seconds=pause)

    def _family(self, task: TaskId, order: Order) -> str:
        known = self._ledger[task].fingerprint
        return order.family or (known.family if known else "")

    def _rejected(self, event: Event, order: Order, reason: str, *, lost: bool = False) -> list[Event]:
        family = self._family(event.task, order)
        if not family:
            return []
        if len(order.members) > 1:
            found = [self._family(member.task.identity, order) for member in order.members]
            families, knobs = tuple(found), {**order.knobs, "members": len(found)}
        else:
            families, knobs = (family,) * int(order.knobs.get("members", 1)), dict(order.knobs)
        rejection = Rejection(
            families=families,
            technique=order.technique,
            knobs=knobs,
            kind=self._kind_of(order.devices[0]),
            count=len(order.devices),
            reason=reason,
        )
        return [
            OptionRejected(
                task=event.task,
                attempt=event.attempt,
                at_seconds=event.at_seconds,
                rejection=rejection,
                lost=lost,
            )
        ]


def _how(order: Order) -> str:
    """On which rung an order was, in words; empty for the first."""
    has_rungs = spec_of(order.technique).ladder is not None
    lower = has_rungs and (order.knobs.get("microbatches", 1) > 1 or order.knobs.get("recompute"))
    return f", {in_words(order.knobs)}" if lower else ""
