"""Where tasks stand is a fold over events: each kind moves it as its description says."""

from hypothesis import given
from hypothesis import strategies as st

from dovetail.metrics.progress import ENDED, STATUSES, Progress, fold
from dovetail.vocabulary import EVENTS, Event, Fingerprint, read_event


def event(kind: str, at_seconds: float = 0.0, *, task: str = "a", attempt: int = 1, **data: object) -> Event:
    return read_event(kind, task=task, attempt=attempt, at_seconds=at_seconds, data=data)


def started(at_seconds: float = 0.0, *, step: int = 0, until: int = 100, attempt: int = 1, task: str = "a") -> Event:
    data = {"placement": f"p{attempt}", "devices": ["n0:0", "n0:1"], "step": step, "until": until}
    return event("started", at_seconds, task=task, attempt=attempt, predicted_seconds=50.0, **data)


def one(*events: Event) -> Progress:
    return fold(events)["a"]


def test_a_start_opens_a_span_with_its_prediction():
    task = one(started(5.0, step=10))
    assert (task.status, task.attempt, task.step, task.count) == ("running", 1, 10, 2)
    (span,) = task.spans
    assert (span.start_seconds, span.end_seconds, span.from_step, span.until_step) == (5.0, None, 10, 100)
    assert (span.predicted_seconds, span.devices) == (50.0, ("n0:0", "n0:1"))


def test_what_goes_wrong_in_a_trial_with_a_task_that_runs_leaves_its_attempt_alone():
    for kind in ("lost", "failed"):
        task = one(started(), event("progress", 30, step=60), event(kind, 31, attempt=0, reason="its trial died"))
        assert (task.status, task.step, task.losses, task.spans[-1].end_seconds) == ("running", 60, 0, None)


def test_a_loss_goes_back_to_the_saved_step_and_counts():
    task = one(
        started(), event("saved", 20, step=40, path="x", bytes=1), event("progress", 30, step=60), event("lost", 31)
    )
    assert (task.status, task.step, task.losses) == ("pending", 40, 1)
    assert (task.spans[0].end_seconds, task.spans[0].to_step) == (31, 60)


def test_a_newer_save_forgives_losses_and_an_equal_one_does_not():
    first = [started(), event("saved", step=40), event("lost"), started(attempt=2, step=40)]
    assert one(*first, event("saved", step=40), event("lost")).losses == 2
    assert one(*first, event("saved", step=50), event("lost")).losses == 1


def test_finishing_closes_the_span_and_keeps_the_step():
    task = one(started(), event("finished", 48.0, step=100, seconds=48.0, reason="steps"))
    assert (task.status, task.step, task.reason) == ("finished", 100, "steps")
    assert (task.spans[0].end_seconds, task.spans[0].to_step) == (48.0, 100)


def test_stopping_is_pending_and_waiting_is_resting():
    assert one(started(), event("stopped", 9, step=30)).status == "pending"
    assert one(started(), event("waiting", 9, step=30)).status == "resting"


def test_a_task_is_paused_once_no_attempt_is_under_way():
    assert one(event("paused")).status == "paused"
    assert one(started(), event("paused")).status == "running"
    assert one(started(), event("paused"), event("stopped", 9, step=30)).status == "paused"
    assert one(started(), event("paused"), event("lost")).status == "paused"
    assert one(started(), event("paused"), event("finished", step=100)).status == "finished"
    assert one(event("cancelled", step=3), event("paused"), event("retried")).status == "paused"


def test_resuming_is_pending_again():
    assert one(event("paused"), event("resumed")).status == "pending"
    assert one(started(), event("paused"), event("resumed"), event("stopped", 9, step=30)).status == "pending"


def test_what_was_submitted_has_a_priority_that_can_be_changed():
    task = one(event("submitted", 7, priority=2.0, deadline_seconds=90.0))
    assert (task.submitted_seconds, task.priority, task.deadline_seconds) == (7, 2.0, 90.0)
    assert one(event("submitted", 7, priority=2.0), event("prioritized", priority=3.0)).priority == 3.0


def test_extending_reopens_what_was_finished_or_halved_only():
    extended = event("extended", before="100 steps", after="200 steps")
    assert one(event("finished", step=100), extended).status == "pending"
    assert one(event("halved", step=30), extended).status == "pending"
    assert one(event("failed", reason="nan"), extended).status == "failed"
    assert one(event("cancelled", step=3), extended).status == "cancelled"


def test_a_new_start_clears_the_reason_of_the_last_end():
    task = one(started(), event("lost", reason="silent"), started(attempt=2))
    assert (task.reason, task.attempt, len(task.spans)) == ("", 2, 2)


def test_vanished_and_changed_tasks_are_kept_and_may_return():
    assert one(event("vanished")).vanished
    assert one(event("changed", by="b")).vanished
    assert not one(event("vanished"), event("returned")).vanished


def test_a_fingerprint_is_remembered():
    assert one(event("fingerprinted", family="f", steps_per_epoch=7)).fingerprint == Fingerprint(
        family="f", steps_per_epoch=7
    )


def test_a_restart_forgets_all_but_the_attempts_and_when_they_ran():
    before = [started(), event("saved", step=100), event("finished", 9.0, step=100, metrics={"accuracy": 0.9})]
    task = one(*before, event("restarted", 20.0, attempt=1))
    assert (task.status, task.step, task.saved_step, task.metrics, task.count) == ("pending", 0, 0, {}, 0)
    assert (task.attempt, task.anew_since_attempt, task.anew_since_seconds) == (1, 1, 20.0)
    assert (len(task.former_spans), task.spans) == (1, [])


def test_events_of_the_whole_concern_no_task():
    assert fold([read_event("warned", at_seconds=0.0, data={"message": "x"})]) == {}


def test_tasks_do_not_touch_each_other():
    folded = fold([started(), started(task="b"), event("failed", task="b", reason="nan")])
    assert (folded["a"].status, folded["b"].status) == ("running", "failed")


def test_every_handled_status_is_a_known_one():
    assert set(ENDED) <= set(STATUSES)


def _events() -> st.SearchStrategy[Event]:
    kinds = ("started", "progress", "saved", "finished", "stopped", "lost", "failed", "extended", "waiting", "halved")
    assert set(kinds) <= set(EVENTS)
    steps = st.integers(0, 100)
    return st.builds(
        lambda kind, step: started(step=step) if kind == "started" else event(kind, step=step, before="", after=""),
        st.sampled_from(kinds),
        steps,
    )


@given(st.lists(_events(), max_size=30), st.integers(0, 30))
def test_folding_in_two_parts_is_folding_at_once(events: list[Event], cut: int):
    assert fold(events[cut:], fold(events[:cut])) == fold(events)


@given(st.lists(_events(), max_size=30))
def test_a_task_that_does_not_run_has_no_open_last_span(events: list[Event]):
    for task in fold(events).values():
        assert task.status in STATUSES
        if task.status != "running" and task.spans:
            assert task.spans[-1].end_seconds is not None
