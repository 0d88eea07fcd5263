"""Successive halving: the pure rules, and whole runs of them on the simulated engine."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.control.halving import complete_rung, survivors, target
from dovetail.metrics.progress import Progress
from dovetail.planning import check
from dovetail.store import Store
from dovetail.vocabulary import Halving
from tests.control.simulations import (
    Faults,
    RiggedEngine,
    carry_out,
    cluster,
    controller,
    events_of,
    happened,
    statuses,
    task,
    workload,
    world,
)

halvings = st.builds(
    Halving,
    metric=st.just("score"),
    first_steps=st.integers(1, 50),
    factor=st.integers(2, 5),
    goal=st.sampled_from(["max", "min"]),
)
scores = st.dictionaries(st.text("abc", min_size=1, max_size=3), st.floats(width=16), min_size=1)
RULE = Halving(metric="score", first_steps=10, factor=2)


@given(rule=halvings, last=st.integers(1, 2000))
def test_the_way_to_the_end_passes_every_rung_once(rule, last):
    """Going from target to target meets exactly the rungs, then the end."""
    step, met = 0, []
    while True:
        step, final = target(rule, promoted_step=step, saved_step=step, last_step=last)
        if final:
            break
        met.append(step)
    assert tuple(met) == rule.rungs(last)
    assert step == last


@given(last=st.integers(1, 2000), step=st.integers(0, 2000))
def test_without_halving_the_target_is_the_end(last, step):
    assert target(None, promoted_step=0, saved_step=step, last_step=last) == (last, True)


@given(rule=halvings, last=st.integers(1, 2000), data=st.data())
def test_a_rung_that_was_reached_and_not_judged_is_still_ahead(rule, last, data):
    rungs = rule.rungs(last)
    if rungs:
        number = data.draw(st.integers(0, len(rungs) - 1))
        promoted = rungs[number - 1] if number else 0
        assert target(rule, promoted_step=promoted, saved_step=rungs[number], last_step=last) == (rungs[number], False)


@given(rule=halvings, found=scores)
def test_survivors_are_the_best_share_and_never_none(rule, found):
    onward = survivors(rule, found)
    assert len(onward) == max(1, len(found) // rule.factor)
    sign = 1 if rule.goal == "max" else -1
    left = [sign * found[name] for name in found.keys() - onward]
    kept = [sign * found[name] for name in onward]
    numbers = [value for value in kept if not math.isnan(value)]
    assert all(low <= high for low in left if not math.isnan(low) for high in numbers)
    if len(numbers) < len(kept):  # NaN goes on only where no number is left behind
        assert all(math.isnan(value) for value in left)


@given(rule=halvings, found=scores, shuffled=st.randoms())
def test_survivors_do_not_depend_on_the_order_of_arrival(rule, found, shuffled):
    names = list(found)
    shuffled.shuffle(names)
    assert survivors(rule, {name: found[name] for name in names}) == survivors(rule, found)


def at(status, step, promoted=0):
    return Progress(task="", status=status, step=step, promoted_step=promoted)


@pytest.mark.parametrize(
    ("others", "complete"),
    [
        pytest.param([], True, id="alone"),
        pytest.param([at("resting", 10)], True, id="all rest"),
        pytest.param([at("resting", 30)], True, id="another rests higher up"),
        pytest.param([at("pending", 0)], False, id="one has not begun"),
        pytest.param([at("running", 4)], False, id="one is on its way"),
        pytest.param([at("running", 10)], False, id="one has taken its last step and not been judged"),
        pytest.param([at("running", 10, promoted=10)], True, id="one was promoted and runs on"),
        pytest.param([at("pending", 10, promoted=10)], True, id="one was promoted and waits for devices"),
        pytest.param([at("pending", 10)], False, id="one was lost there before it was judged"),
        pytest.param([at("running", 15)], True, id="one was beyond before there was halving"),
        pytest.param([at("failed", 3), at("halved", 5), at("cancelled", 0), at("finished", 7)], True, id="ended"),
    ],
)
def test_a_rung_is_complete_when_nobody_can_still_come(others, complete):
    progress = {str(n): one for n, one in enumerate([at("resting", 10), *others])}
    assert complete_rung(progress) == (10 if complete else None)


def test_no_rung_is_complete_where_nobody_rests():
    assert complete_rung({"a": at("running", 3), "b": at("finished", 10)}) is None


def run_halving(count=8, *, rule=RULE, faults=None, devices=3, steps=40):
    """Tasks t0, t1, ... of which a higher number scores higher."""
    faults = faults or Faults()
    faults.score = lambda name, step: float(name[1:])
    store = Store(None, write=True)
    tasks = [task(f"t{n}", steps=steps) for n in range(count)]
    found = controller(
        workload(*tasks, halving=rule),
        store,
        on=cluster(devices),
        engine=RiggedEngine(world(slowness=lambda order: 1 + len(order.devices) % 2), faults),
    )
    return carry_out(found), store, tasks


def test_the_best_go_on_whatever_order_they_ran_in():
    found, store, tasks = run_halving()
    ended = {found.tasks[i].name: (one.status, one.step) for i, one in found.progress.items()}
    assert ended == {
        **{f"t{n}": ("halved", 10) for n in range(4)},
        **{f"t{n}": ("halved", 20) for n in (4, 5)},
        "t6": ("finished", 40),
        "t7": ("finished", 40),
    }
    check(happened(store), found.cluster)
    (left,) = events_of(store, "halved", tasks[0])
    assert left.reason == "score 0 at step 10 was not among the best"
    assert [event.step for event in events_of(store, "promoted", tasks[7])] == [10, 20]


def test_no_step_is_taken_twice_on_the_way_up():
    _, store, tasks = run_halving()
    spans = [(event.step, event.until) for event in events_of(store, "started", tasks[7])]
    assert spans == [(0, 10), (10, 20), (20, 40)]


def test_goal_min_keeps_the_lowest():
    found, _, _ = run_halving(4, rule=Halving(metric="score", first_steps=10, factor=4, goal="min"))
    assert [name for name, status in statuses(found).items() if status == "finished"] == ["t0"]


def test_a_failed_task_is_not_waited_for():
    found, _, _ = run_halving(
        4, faults=Faults(outcome=lambda name, attempt, until: "it broke" if name == "t3" else None)
    )
    assert statuses(found) == {"t0": "halved", "t1": "halved", "t2": "finished", "t3": "failed"}


def test_a_metric_that_is_never_reported_fails_the_tasks_before_they_train():
    found, store, _ = run_halving(2, rule=Halving(metric="accuracy", first_steps=10))
    assert set(statuses(found).values()) == {"failed"}
    assert events_of(store, "started") == []
    (one, _) = found.progress.values()
    assert "must report the metric 'accuracy'" in one.reason
    assert "['score']" in one.reason
