"""What the loop believes is what its log says: after whatever happens, whoever reads the log knows the same."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.control.state.ledger import Ledger
from dovetail.control.state.recovery import Recovery, pause_seconds
from dovetail.engines import MemberOrder, Order
from dovetail.metrics.progress import GANG_LOSSES, Progress, fold
from dovetail.store import Store
from dovetail.vocabulary import Fingerprint, Profile
from dovetail.vocabulary.events import AttemptLost, TaskFailed, TaskFingerprinted
from tests.control.simulations import RiggedEngine, carry_out, controller, same_moment, task, workload, world

NAMES = ("a", "b", "c")
REQUESTS = ("pause", "resume", "cancel", "priority")


class Chaotic(RiggedEngine):
    """Ends of attempts, and trials, as a list of outcomes says, one after another; what comes after it goes well."""

    def __init__(self, outcomes):
        super().__init__(fusing(world()))
        self._outcomes = list(outcomes)

    def _next(self):
        return self._outcomes.pop(0) if self._outcomes else "well"

    def _rigged(self, event):
        if event.kind == "measured" and self._next() == "lost":
            yield same_moment(AttemptLost, event, reason="its worker died")
        else:
            yield from super()._rigged(event)

    def _ended(self, event):
        outcome = self._next()
        if outcome in ("memory", "refused", "program"):
            yield same_moment(TaskFailed, event, reason=f"for {outcome}", cause=outcome)
        elif outcome == "lost":
            yield same_moment(AttemptLost, event, reason="its worker died")
        elif outcome == "saved":
            yield from self._saves(event)
            yield same_moment(AttemptLost, event, reason="its worker died")
        else:
            yield from super()._ended(event)

    def _saves(self, event):
        from tests.control.simulations import _saved

        yield _saved(event, max(1, event.step // 2))


def fusing(found):
    """Tasks of a family may also be trained as one, twice as fast each: the loop makes gangs of them."""

    def otherwise(technique, family, kind, count):
        members = 2 if technique == "fuse" else 1
        knobs = {"members": members} if members > 1 else {}
        return Profile(
            family=family,
            technique=technique,
            kind=kind,
            count=count,
            step_seconds=1.0,
            peak_bytes=1 << 30,
            metrics=("score",),
            knobs=knobs,
        )

    return dataclasses.replace(found, otherwise=otherwise)


def assert_the_log_says_the_same(found):
    """Where every task stands, what does not fit and who waits, live and as the next controller would know it."""
    live = {each: one for each, one in found._ledger._progress.items() if one != Progress(task=each)}
    assert fold(event for _, event in found.store.events()) == live
    again = Ledger(found.store, now=found.now)
    assert again.rejections() == found._ledger.rejections()
    assert again.divided() == found._ledger.divided()
    assert again.profiles() == found._ledger.profiles()
    next_one = Recovery(again, now=found.now, kind_of=str, retries=3)
    recovery = found._state.recovery
    # Those of which the pause is over, or that have ended meanwhile, are forgotten in the next turn.
    waits = {each: at for each, at in recovery._until.items() if at > found.now() and not again.has_ended(each)}
    assert next_one._until == waits
    assert [each for each in live if next_one.alone(each)] == [each for each in live if recovery.alone(each)]


outcomes = st.lists(st.sampled_from(["well", "lost", "saved", "memory", "refused", "program"]), max_size=14)
requests = st.lists(st.none() | st.tuples(st.sampled_from(REQUESTS), st.sampled_from(NAMES)), max_size=14)


@given(outcomes, requests, st.integers(0, 3))
@settings(max_examples=25, deadline=None)
def test_live_state_is_what_is_folded_from_the_log_after_every_event(outcomes, requests, retries):
    asked = list(requests)

    def observe(found):
        assert_the_log_says_the_same(found)
        if asked and (request := asked.pop(0)) is not None:
            verb, name = request
            found.post("request", request={"do": verb, "task": name, "priority": 2.0}, reply=lambda answer: None)

    with Store(None, write=True) as store:
        what = workload(*(task(name, steps=8) for name in NAMES))
        for _ in range(2):  # whoever runs it again goes on with what the log says
            found = controller(what, store, engine=Chaotic(outcomes), observe=observe, retries=retries)
            assert_the_log_says_the_same(found)
            carry_out(found)
            assert_the_log_says_the_same(found)


@pytest.fixture
def ledger():
    with Store(None, write=True) as store:
        ledger = Ledger(store, now=lambda: 0.0)
        ledger.record([TaskFingerprinted(task=task("a").identity, at_seconds=0.0, fingerprint=Fingerprint(family="f"))])
        yield ledger


def lose(recovery, ledger, order, *, cause=""):
    """One attempt at the order's tasks ends so; gives what followed."""
    followed = []
    for member in order.members:
        about = {"task": member.task.identity, "attempt": 1, "at_seconds": 0.0}
        event = TaskFailed(**about, reason="no room", cause=cause) if cause else AttemptLost(**about, reason="it died")
        accepted = recovery.accept(event, order)
        ledger.record(accepted)
        for each in accepted:
            if isinstance(each, AttemptLost):
                after = recovery.after_loss(each, order)
                ledger.record(after)
                followed += after
    return followed


def order_of(*names, **fields):
    members = tuple(MemberOrder(task=task(name), attempt=1) for name in names)
    return Order(name="o", purpose="train", members=members, devices=("n0:0",), technique="resident", **fields)


def test_what_was_the_options_fault_is_nobodys_loss_for_the_next_controller_either(ledger):
    recovery = Recovery(ledger, now=lambda: 0.0, kind_of=lambda device: "sim", retries=3)
    for parts in (1, 2, 4, 8, 16):
        lose(recovery, ledger, order_of("a", knobs={"microbatches": parts}), cause="memory")
    identity = task("a").identity
    assert ledger[identity].losses == 0
    again = Ledger(ledger.store, now=lambda: 0.0)
    assert again[identity].losses == 0
    followed = lose(Recovery(again, now=lambda: 0.0, kind_of=str, retries=3), again, order_of("a"))
    assert (followed, again[identity].status, again[identity].losses) == ([], "pending", 1)


def test_the_next_controller_knows_who_was_lost_in_gangs_and_who_waits(ledger):
    recovery = Recovery(ledger, now=lambda: 0.0, kind_of=str, retries=3)
    said = [lose(recovery, ledger, order_of("a", "b")) for _ in range(GANG_LOSSES)]
    assert ([len(each) for each in said], said[-1][0].kind) == ([0, 2], "warned")
    for _ in range(3):
        lose(recovery, ledger, order_of("a"))
    again = Recovery(Ledger(ledger.store, now=lambda: 0.0), now=lambda: 0.0, kind_of=str, retries=3)
    first, second = (task(name).identity for name in ("a", "b"))
    assert again.alone(first)
    assert again.alone(second)
    assert again.waits(first)
    assert not again.waits(second)
    assert again.wake_seconds() == pause_seconds(3)
