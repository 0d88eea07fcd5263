"""A controller that stays: what is asked of it while it runs, on the simulated engine."""

import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import json
import math
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.control import Answers, standing
from dovetail.control.daemon.submissions import read_submission
from dovetail.control.deciding.sharing import Sharing
from dovetail.control.measuring.measuring import ROOM_SECONDS
from dovetail.metrics.progress import ENDED
from dovetail.planning import check
from dovetail.planning.share.policies import POLICIES
from dovetail.store import Store
from dovetail.verbs.daemon import sharing
from dovetail.vocabulary import (
    Entity,
    InvalidRecord,
    InvalidWorkload,
    NoFeasiblePlan,
    Program,
    ProgramError,
    Schedule,
    StoreRefused,
    Task,
    dumps,
    to_json,
)
from dovetail.vocabulary.events import Warned
from tests.control.simulations import (
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

TICK = 10.0
DEEP, LESS_DEEP = (functools.reduce(lambda inner, _: [inner], range(depth), 1) for depth in (485, 40))


class Ticking(RiggedEngine):
    """Its clock never jumps further than a tick, so that a script can speak up at any time."""

    def wait(self):
        self.wake(self.now() + TICK)
        return super().wait()


@pytest.fixture
def store():
    with Store(None, write=True) as opened:
        yield opened


@pytest.fixture
def program(tmp_path):
    """Where the program of a simulated task is: nothing runs it, but it is read."""
    path = tmp_path / "a.py"
    path.write_text("def f(rate=0.1, seed=0):\n    pass\n\ndef g(rate=0.1):\n    pass\n")
    return path


class Script:
    """Asks one thing after another, each when its time has come; stops the controller once all is asked and ended."""

    def __init__(self, *lines, until=math.inf):
        self.lines, self.answers, self.until = list(lines), [], until
        self.count = len(lines)

    def __call__(self, found):
        while self.lines and self.lines[0][0] <= found.now():
            _, request = self.lines.pop(0)
            found.post("request", request=request, reply=self.answers.append)
        ended = all(one.status in (*ENDED, "paused") for one in found.progress.values())
        if (ended and len(self.answers) == self.count) or found.now() > self.until:
            found.post("stop", reason="the script is over")


def submitting(*tasks, **more):
    request = {"tasks": [to_json(each) for each in tasks], **more}
    return {"do": "submit", "submission": _read(request)}


def _read(request):
    # What a client's thread makes of it; simulated programs have no files to read.
    from dovetail.control.daemon.submissions import Submission, read_priority
    from dovetail.vocabulary import from_json

    return Submission(
        workload="w",
        tasks=tuple(from_json(Task, each) for each in request["tasks"]),
        priority=read_priority(request.get("priority", 1.0)),
        deadline_seconds=request.get("deadline_seconds", math.inf),
        entity=request.get("entity", ""),
    )


def serve(store, *lines, on=None, engine=None, until=math.inf, decider=None, objective="weighted"):
    """A daemon on a store that is asked these (when, request), until all has ended."""
    script = Script(*lines, until=until)
    engine = engine or Ticking(world())
    found = carry_out(
        controller(
            standing(store, objective=objective),
            store,
            on=on or cluster(1),
            engine=engine,
            observe=script,
            decider=decider,
        )
    )
    # What was told to stop in the instant in which it started took no time.
    took = tuple(each for each in happened(store).placements if each.duration_seconds)
    check(Schedule(placements=took), found.cluster)
    return found, script.answers


def spans(store, record):
    return [(event.step, event.until) for event in events_of(store, "started", record)]


# Arrivals


def test_it_idles_until_something_comes_and_runs_it(store):
    late = task("late", steps=50)
    found, answers = serve(store, (100.0, submitting(late)))
    assert answers == [{"done": "1 task submitted", "tasks": ["late"]}]
    assert statuses(found) == {"late": "finished"}
    (started,) = events_of(store, "started", late)
    assert started.at_seconds >= 100


def test_what_comes_while_others_run_is_measured_at_once_and_what_made_room_goes_on(store):
    long, other = task("long", steps=1000), task("other", steps=100, family="g")
    found, _ = serve(store, (0.0, submitting(long)), (300.0, submitting(other)))
    assert set(statuses(found).values()) == {"finished"}
    (stopped,) = events_of(store, "stopped", long)
    assert stopped.reason == "it makes room to measure what has come"
    (measured,) = [event for event in events_of(store, "measured") if event.profile.family == "g"]
    assert 300 <= measured.at_seconds < 350
    first, second = spans(store, long)
    assert first == (0, 1000)
    assert 250 < second[0] < 350


def test_many_that_come_one_by_one_do_not_stop_training_each(store):
    long = task("long", steps=1000)
    others = [(300.0 + 5 * n, submitting(task(f"t{n}", steps=10))) for n in range(8)]
    found, _ = serve(store, (0.0, submitting(long)), *others, decider=sharing("first_come", ROUND))
    assert set(statuses(found).values()) == {"finished"}
    stops = events_of(store, "stopped", long)
    room = [event.at_seconds for event in stops if event.reason.startswith("it makes room")]
    assert room
    assert all(later - sooner >= ROOM_SECONDS for sooner, later in itertools.pairwise(room))


def test_a_family_that_is_known_is_not_measured_again(store):
    engine = Ticking(world())
    serve(store, (0.0, submitting(task("a"))), (200.0, submitting(task("b"))), engine=engine)
    assert [order.purpose for order in engine.orders].count("measure") == 1


def test_tasks_keep_the_name_of_the_workload_they_came_with(store):
    serve(store, (0.0, submitting(task("a"))))
    assert [name for name, _ in store.tasks()] == ["w"]


# Restarts


def test_a_daemon_that_is_started_again_goes_on_with_what_it_had(store):
    a, b, c = task("a", steps=500), task("b", steps=500), task("c", steps=500)
    serve(store, (0.0, submitting(a, b, c)), (50.0, {"do": "pause", "task": "c"}), until=300)
    found, _ = serve(store, (0.0, {"do": "list"}))
    assert statuses(found) == {"a": "finished", "b": "finished", "c": "paused"}
    found, _ = serve(store, (0.0, {"do": "resume", "task": "c"}))
    assert statuses(found)["c"] == "finished"


def test_a_workload_that_was_only_run_is_not_the_daemons(store):
    carry_out(controller(workload(task("ran")), store))
    assert standing(store).tasks == ()


def test_a_failed_task_is_not_tried_again_by_a_restart(store):
    serve(store, (0.0, submitting(task("a", steps=100))), (10.0, {"do": "cancel", "task": "a"}))
    found, _ = serve(store, (0.0, {"do": "list"}))
    assert statuses(found) == {"a": "cancelled"}


# Pausing


def test_a_running_task_is_saved_and_stays_out_until_it_is_resumed(store):
    long, other = task("long", steps=300), task("other", steps=100)
    found, answers = serve(
        store,
        (0.0, submitting(long)),
        (100.0, {"do": "pause", "task": "long"}),
        (110.0, submitting(other)),
        (600.0, {"do": "resume", "task": "long"}),
    )
    assert [each.get("done") for each in answers] == [
        "1 task submitted",
        "long is paused once it is saved",
        "1 task submitted",
        f"long goes on from step {spans(store, long)[1][0]}",
    ]
    assert set(statuses(found).values()) == {"finished"}
    first, second = (event.at_seconds for event in events_of(store, "started", long))
    assert first < 100 < 600 <= second
    assert 80 < spans(store, long)[1][0] < 120


def test_a_task_that_waits_is_paused_at_once(store):
    first, second = task("first", steps=100), task("second", steps=200)
    found, _ = serve(store, (0.0, submitting(first, second)), (10.0, {"do": "pause", "task": "second"}))
    assert statuses(found) == {"first": "finished", "second": "paused"}
    assert spans(store, second) == []


def test_a_paused_task_ends_a_run_that_it_is_part_of_and_running_again_resumes_it(store):
    engine, script = Ticking(world()), Script((50.0, {"do": "pause", "task": "b"}))
    what = workload(task("a", steps=100), task("b", steps=100))
    found = carry_out(controller(what, store, on=cluster(2), engine=engine, observe=script))
    assert statuses(found) == {"a": "finished", "b": "paused"}
    assert statuses(carry_out(controller(what, store))) == {"a": "finished", "b": "finished"}


def test_what_failed_is_tried_again_when_it_is_resumed(store):
    a = task("a", steps=100)
    found, _ = serve(
        store, (0.0, submitting(a)), (50.0, {"do": "cancel", "task": "a"}), (100.0, {"do": "resume", "task": "a"})
    )
    assert statuses(found) == {"a": "finished"}
    assert spans(store, a)[1][0] > 0


# Priorities, and why a task waits


def test_the_task_of_higher_priority_goes_first(store):
    tasks = [task(name, steps=100 + 10 * n) for n, name in enumerate("abcd")]  # the shortest goes first
    serve(store, (0.0, submitting(*tasks)), (50.0, {"do": "priority", "task": "d", "priority": 9}))
    begun = {record.name: events_of(store, "started", record)[0].at_seconds for record in tasks}
    assert sorted(begun, key=begun.__getitem__) == ["a", "d", "b", "c"]


def test_a_deadline_is_kept_with_who_set_it_and_can_be_taken_back(store):
    asked = {"do": "deadline", "task": "b", "asked_by": "ada, on the page"}
    _, answers = serve(
        store,
        (0.0, submitting(task("a"), task("b"))),
        (10.0, {**asked, "deadline_seconds": 500.0}),
        (20.0, {"do": "list"}),
        (30.0, {**asked, "deadline_seconds": None}),
    )
    assert answers[1]["done"] == "b is to have ended in 8 min 10 s"
    assert [row["deadline_seconds"] for row in answers[2]["tasks"]] == [None, 500.0]
    assert answers[3]["done"] == "b has no deadline"
    dated = events_of(store, "dated", task("b"))
    assert [(event.deadline_seconds, event.asked_by) for event in dated] == [
        (500.0, asked["asked_by"]),
        (math.inf, asked["asked_by"]),
    ]


def test_a_list_says_why_and_when(store):
    tasks = [task("a", steps=100), task("b", steps=100), task("c", steps=200), task("d", steps=300)]
    _, answers = serve(
        store,
        (0.0, submitting(*tasks[:3])),
        (50.0, submitting(tasks[3], deadline_seconds=200.0)),
        (60.0, {"do": "pause", "task": "c"}),
        (70.0, {"do": "list"}),
        on=cluster(1),
    )
    rows = {row["task"]: row for row in answers[-1]["tasks"]}
    assert json.loads(json.dumps(answers[-1])) == answers[-1]
    running, (first, second) = rows["d"], sorted((rows["a"], rows["b"]), key=lambda row: row["start_seconds"])
    assert running["status"] == "running"  # nobody else has a deadline, so it is late by least if it goes first
    assert running["why"].startswith("on n0:0; it will miss its deadline by about ")
    assert running["start_seconds"] < 70 < running["end_seconds"]
    assert all(row["why"].startswith("its device is taken by d until about ") for row in (first, second))
    assert first["why"].endswith("; it is next")
    assert second["why"].endswith("; 1 starts before it")
    assert first["start_seconds"] == pytest.approx(running["end_seconds"], abs=15)
    assert second["start_seconds"] == pytest.approx(first["end_seconds"], abs=15)
    assert rows["c"]["why"] == "paused by a user at step 0"
    assert (rows["c"]["start_seconds"], rows["c"]["end_seconds"]) == (None, None)


# Sharing by rounds

ROUND = 60.0
SHARED = sharing("max_min_fairness", ROUND)


def shares(store, *tasks, until):
    """The seconds that each task ran until a moment."""
    found = []
    for record in tasks:
        starts = [event.at_seconds for event in events_of(store, "started", record)]
        ends = [e.at_seconds for kind in ("stopped", "finished") for e in events_of(store, kind, record)]
        spent = [min(end, until) - start for start, end in zip(starts, sorted(ends), strict=True) if start < until]
        found.append(sum(spent))
    return found


def test_what_comes_has_its_turn_at_the_next_round_and_what_runs_is_saved_first(store):
    first, second = task("first", steps=2000), task("second", steps=500)
    found, _ = serve(store, (0.0, submitting(first)), (300.0, submitting(second)), decider=SHARED)
    assert set(statuses(found).values()) == {"finished"}
    assert events_of(store, "started", second)[0].at_seconds <= 300 + 2 * ROUND + TICK
    one, other = shares(store, first, second, until=events_of(store, "finished", second)[0].at_seconds)
    assert other == pytest.approx(500, abs=1)
    assert one - 300 == pytest.approx(500, abs=3 * ROUND)  # a share alike, since it came
    starts = [step for step, _ in spans(store, first)]
    assert starts == sorted(set(starts))


def test_an_idle_device_is_given_away_at_once(store):
    a, b = task("a", steps=500), task("b", steps=500)
    serve(store, (0.0, submitting(a)), (205.0, submitting(b)), on=cluster(2), decider=SHARED)
    # A tick until it is heard, a moment for its family; no round has to end first.
    assert events_of(store, "started", b)[0].at_seconds <= 205 + 2 * TICK


def test_whoever_has_twice_the_priority_has_twice_the_time(store):
    a, b = task("a", steps=3000), task("b", steps=3000)
    prefer = {"do": "priority", "task": "b", "priority": 2}
    serve(store, (0.0, submitting(a, b)), (10.0, prefer), decider=SHARED, until=2000)
    one, other = shares(store, a, b, until=2000)
    assert other / one == pytest.approx(2, rel=0.25)


def test_an_entity_has_its_part_however_many_tasks_it_has(store):
    several, alone = [task(name, steps=3000) for name in "abc"], task("d", steps=3000)
    shared = sharing("hierarchical", ROUND, entities=(Entity(name="speech", weight=2.0),))
    lines = (0.0, submitting(*several, entity="vision")), (0.0, submitting(alone, entity="speech"))
    serve(store, *lines, decider=shared, until=3000)
    *of_vision, of_speech = shares(store, *several, alone, until=3000)
    assert of_speech / sum(of_vision) == pytest.approx(2, rel=0.25)  # vision was never told of, and weighs 1


def test_a_paused_task_has_no_turn(store):
    a, b = task("a", steps=600), task("b", steps=600)
    found, _ = serve(
        store,
        (0.0, submitting(a, b)),
        (200.0, {"do": "pause", "task": "a"}),
        (1500.0, {"do": "resume", "task": "a"}),
        decider=SHARED,
    )
    assert set(statuses(found).values()) == {"finished"}
    assert not [e for e in events_of(store, "started", a) if 200 + TICK < e.at_seconds < 1500]
    assert events_of(store, "finished", b)[0].at_seconds < 1000


def test_a_list_says_what_share_a_task_is_due_and_when_its_turn_comes(store):
    tasks = [task(name, steps=5000) for name in "abc"]
    _, answers = serve(store, (0.0, submitting(*tasks)), (170.0, {"do": "list"}), decider=SHARED, until=1000)
    rows = list(zip(tasks, answers[1]["tasks"], strict=True))
    (running,) = [row["task"] for _, row in rows if row["status"] == "running"]
    for record, row in rows:
        assert row["end_seconds"] == pytest.approx(170 + 3 * 5000, rel=0.1)
        if row["status"] == "pending":
            begun = [event.at_seconds for event in events_of(store, "started", record) if event.at_seconds > 170]
            assert row["start_seconds"] == pytest.approx(begun[0])  # and so it came
            assert row["why"].startswith(f"{running} has this round, until about ")
            assert "; it is due 33% of the time and its turn comes in " in row["why"]


# Names


def test_a_name_is_taken_until_its_task_has_ended(store):
    edited = task("a", steps=100, source="edited")
    found, answers = serve(
        store,
        (0.0, submitting(task("a", steps=100))),
        (50.0, submitting(edited)),
        (60.0, {"do": "cancel", "task": "a"}),
        (100.0, submitting(edited)),
    )
    assert "a task must have a name of its own; 'a' is running at step 0. Rename" in answers[1]["error"]
    assert answers[3] == {"done": "1 task submitted", "tasks": ["a"]}
    assert list(found.tasks) == [edited.identity]
    assert [each.identity for each in standing(store).tasks] == [edited.identity]


def test_what_has_finished_may_be_given_more_to_do_but_not_the_same(store):
    _, answers = serve(
        store,
        (0.0, submitting(task("a", steps=100))),
        (200.0, submitting(task("a", steps=100))),
        (210.0, submitting(task("a", steps=150))),
    )
    assert "must be new or have something left to do; 'a' has finished (100 steps)" in answers[1]["error"]
    assert spans(store, task("a")) == [(0, 100), (100, 150)]


def test_a_submission_is_taken_whole_or_not_at_all(store):
    found, answers = serve(
        store,
        (0.0, submitting(task("a"))),
        (10.0, submitting(task("b"), task("a", source="x"))),
        (20.0, submitting(task("c"), task("c", source="x"))),
    )
    assert list(statuses(found)) == ["a"]
    assert "'c' is there more than once" in answers[2]["error"]


# What cannot be


@pytest.mark.parametrize(
    ("request_", "because"),
    [
        ({"do": "pause", "task": "b"}, "the task must be one of ['a'], got 'b'."),
        ({"do": "pause"}, "the task must be one of ['a'], got None."),
        ({"do": "resume", "task": "a"}, "a task to resume must be paused, failed or cancelled; 'a' is pending"),
        ({"do": "priority", "task": "a", "priority": 0}, "a priority must be a number greater than 0"),
        ({"do": "priority", "task": "a", "priority": "high"}, "got 'high'"),
        ({"do": "priority", "task": "a", "priority": math.nan}, "got nan"),
        ({"do": "priority", "task": "a", "priority": True}, "got True"),
        ({"do": "priority", "task": "a", "priority": 10**400}, "a priority must be a number greater than 0"),
        ({}, "a command must be what 'dovetail' itself would send; carrying it out gave KeyError('do')"),
        ({"do": "dance"}, "a command must be one of submit, list, pause, resume, cancel, priority, deadline, clone,"),
        (
            {"do": "deadline", "task": "a", "deadline_seconds": "soon"},
            "a deadline must be a time in seconds since 1970",
        ),
        ({"do": "deadline", "task": "a", "deadline_seconds": 1.0}, "a deadline must lie ahead"),
        ({"do": "pause", "task": "a", "asked_by": 5}, "who asks must be text"),
        ({"do": "clone", "task": "a", "warm": True}, "a submitted program's file must be given by its whole path"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(store, request_, because):
    _, answers = serve(store, (0.0, submitting(task("a"))), (10.0, request_))
    assert because in answers[1]["error"]


@pytest.mark.parametrize("name", [5, ["x"], "half a \ud800"])
def test_a_clone_must_have_a_name(store, program, name):
    record = dataclasses.replace(task("a"), program=Program(reference=f"{program}:f"))
    request = {"do": "clone", "task": "a", "name": name}
    found, answers = serve(store, (0.0, submitting(record)), (10.0, request))
    assert "a task's name must be text, and all of it UTF-8" in answers[1]["error"]
    assert statuses(found) == {"a": "finished"}


@pytest.mark.parametrize(
    ("value", "because"),
    [
        (functools.reduce(lambda inner, _: {"a": inner}, range(300), 1), "changed parameters must be nested at most"),
        (DEEP, "changed parameters must be nested at most"),
        (10**400, "changed parameters must have numbers of at most"),
    ],
)
def test_a_clone_that_nobody_could_read_is_refused_and_all_goes_on(store, program, value, because):
    record = dataclasses.replace(task("a"), program=Program(reference=f"{program}:f"))
    request = {"do": "clone", "task": "a", "parameters": {"rate": value}}
    found, answers = serve(store, (0.0, submitting(record)), (10.0, request))
    assert because in answers[1]["error"]
    assert statuses(found) == {"a": "finished"}


@pytest.mark.parametrize("error", [RecursionError("too deep"), MemoryError(), OSError("no disk"), AssertionError()])
def test_whatever_a_request_raises_is_its_answer(store, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr("dovetail.control.daemon.waits.Listing.now", fail)
    found, answers = serve(store, (0.0, submitting(task("a"))), (10.0, {"do": "list"}))
    assert answers[1]["error"].endswith(f"carrying it out gave {error!r}")
    assert statuses(found) == {"a": "finished"}


def test_rows_of_tasks_of_which_nothing_has_changed_are_those_of_last_time(store):
    found, answers = serve(
        store,
        (0.0, submitting(task("a"), task("b"))),
        (0.0, {"do": "pause", "task": "a"}),
        (10.0, {"do": "list"}),
        (20.0, {"do": "list"}),
        (20.0, {"do": "resume", "task": "a"}),
        (30.0, {"do": "list"}),
    )
    first, second, third = (answers[place]["tasks"] for place in (2, 3, 5))
    assert second[0] is first[0]
    assert third[0] is not first[0]
    assert first[0]["status"] == "paused"
    assert third[0]["status"] != "paused"
    assert statuses(found) == {"a": "finished", "b": "finished"}


def test_a_list_has_dicts_and_lists_among_parameters(store):
    given = {"sizes": [1, [2]], "more": {"a": {"b": [3]}}}
    _, answers = serve(store, (0.0, submitting(task("a", **given))), (10.0, {"do": "list"}))
    assert json.loads(json.dumps(answers[1]))["tasks"][0]["parameters"] == given


def test_a_name_that_is_nobodys_is_looked_for_among_few(store):
    many = [task(f"t{n}", steps=1) for n in range(600)]
    _, answers = serve(
        store,
        (0.0, submitting(*many)),
        (10.0, {"do": "cancel", "task": "t599x"}),
        (10.0, {"do": "cancel", "task": "x" * (1 << 20)}),
        (10.0, {"do": "cancel", "task": DEEP[:1]}),
    )
    assert answers[1]["error"].endswith("got 't599x'. Did you mean 't599'?")
    assert all(len(answer["error"]) < 1000 for answer in answers[1:])


def test_what_is_on_record_and_cannot_be_read_fails_alone_at_the_restart(store):
    """As an earlier version acknowledged it."""
    bad = task("bad", steps=7000)
    serve(store, (0.0, submitting(task("good", steps=500), bad)), until=100)
    record = dumps(bad).replace('"steps":7000', f'"steps":{10**400}')
    store._connection.execute("UPDATE tasks SET record = ? WHERE identity = ?", (record, bad.identity))
    for _ in range(2):
        found, answers = serve(store, (0.0, {"do": "list"}))
        assert statuses(found) == {"good": "finished", "bad": "failed"}
        (why,) = [row["why"] for row in answers[0]["tasks"] if row["task"] == "bad"]
        assert "what is on record of it cannot be read: steps must be at most" in why
    assert len(events_of(store, "failed")) == 1
    again = dataclasses.replace(bad, parameters={"rate": 0.5})  # the name is free again
    found, _ = serve(store, (0.0, submitting(again)))
    assert statuses(found) == {"good": "finished", "bad": "finished"}


def fill(store):
    """Let the store's disk be full, to the last byte."""
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count={pages}")
    with contextlib.suppress(StoreRefused):
        while True:
            store.add(events=[Warned(at_seconds=0.0, message="filling")])


def test_a_full_disk_is_waited_for_and_submissions_are_refused_meanwhile(tmp_path):
    answers, phases = [], []
    with Store(tmp_path, write=True) as store:

        def make_room(answer):
            answers.append(answer)
            store._connection.execute("PRAGMA max_page_count=1000000")

        def hear(events):
            if any(isinstance(event, Warned) and event.message.startswith("the store at") for event in events):
                found.post("request", request=submitting(task("b")), reply=answers.append)
                found.post("request", request={"do": "list"}, reply=make_room)

        def observe(found):
            phases.append(found.phase)
            if "start" not in phases:
                phases.append("start")
                found.post("request", request=submitting(task("a", steps=500)), reply=answers.append)
            elif "full" not in phases and found.now() > 100:
                phases.append("full")
                fill(store)
                found.post("request", request=submitting(task("b")), reply=answers.append)
            elif len(answers) == 4:
                found.post("request", request=submitting(task("b")), reply=answers.append)
            elif len(answers) == 5 and not found.left:
                found.post("stop")

        found = controller(standing(store), store, on=cluster(1), engine=Ticking(world()), observe=observe)
        found.listen(hear)
        carry_out(found)
        assert statuses(found) == {"a": "finished", "b": "finished"}
        messages = [event.message for event in events_of(store, "warned") if event.message != "filling"]
    assert answers[0] == {"done": "1 task submitted", "tasks": ["a"]}
    assert all("found: database or disk is full. Free some disk space" in each["error"] for each in answers[1:3])
    assert [row["task"] for row in answers[3]["tasks"]] == ["a"]
    assert answers[4] == {"done": "1 task submitted", "tasks": ["b"]}
    (message,) = messages
    assert message.startswith("the store takes writes again, after: ")


def test_a_stop_ends_the_wait_for_a_full_disk(tmp_path):
    with Store(tmp_path, write=True) as store:

        def hear(events):
            if any(isinstance(event, Warned) for event in events):
                found.post("stop")

        def observe(found):
            if not found.tasks:
                found.post("request", request=submitting(task("a", steps=500)), reply=lambda answer: None)
            elif found.now() > 100 and not found.stopping:
                fill(store)

        found = controller(standing(store), store, on=cluster(1), engine=Ticking(world()), observe=observe)
        found.listen(hear)
        with pytest.raises(StoreRefused, match="what was acknowledged before is safe"):
            carry_out(found)


class Killed(BaseException):
    """As by `kill -9`: nothing is tidied up."""


def test_a_cancel_that_was_answered_holds_though_the_controller_is_killed(store):
    asked = []

    def reply(answer):
        asked.append(answer)
        raise Killed

    def observe(found):
        if not found.progress and not asked:
            asked.append("submit")
            found.post("request", request=submitting(task("a", steps=300)), reply=lambda answer: None)
        elif len(asked) == 1 and any(one.status == "running" for one in found.progress.values()):
            found.post("request", request={"do": "cancel", "task": "a"}, reply=reply)

    with pytest.raises(Killed):
        carry_out(controller(standing(store), store, on=cluster(1), engine=Ticking(world()), observe=observe))
    assert asked[1] == {"done": "a is cancelled"}
    found, _ = serve(store, (0.0, {"do": "list"}))
    assert statuses(found) == {"a": "cancelled"}


def test_pausing_twice_or_what_has_ended_is_refused(store):
    pause = {"do": "pause", "task": "a"}
    _, answers = serve(store, (0.0, submitting(task("a"))), (10.0, pause), (20.0, pause), (30.0, {"do": "list"}))
    assert "a task to pause must be running or waiting; 'a' is paused at step" in answers[2]["error"]
    done = [{"do": each, "task": "a", "priority": 1} for each in ("pause", "cancel", "priority")]
    resume = (0.0, {"do": "resume", "task": "a"})
    _, answers = serve(store, resume, *((500.0, each) for each in done))
    assert all("'a' is finished at step 100" in answer["error"] for answer in answers[1:])


def test_a_run_takes_nothing_on(store):
    script = Script((0.0, submitting(task("b"))), (0.0, {"do": "clone", "task": "a"}))
    carry_out(controller(workload(task("a")), store, engine=Ticking(world()), observe=script))
    for verb, answer in zip(("submit", "clone"), script.answers, strict=True):
        assert answer["error"].startswith(f"{verb} must go to a daemon; this controller carries one workload")


# Cloning, as far as it goes without training


def test_a_fresh_clone_differs_in_what_was_changed(store, program):
    reference = f"{program}:f"
    original = Task(name="a", program=task("a").program, stop=task("a").stop, parameters={"rate": 0.3})
    original = to_json(original) | {"program": {"reference": reference, "source": ""}}
    request = {"do": "submit", "submission": _read({"tasks": [original], "priority": 3})}
    found, answers = serve(
        store,
        (0.0, request),
        (10.0, {"do": "clone", "task": "a", "parameters": {"rate": 0.1}}),
        (10.0, {"do": "clone", "task": "a", "parameters": {}, "name": "same"}),
        (10.0, {"do": "clone", "task": "a", "parameters": {"rat": 0.1}}),
        (10.0, {"do": "clone", "task": "a", "parameters": [1]}),
        (10.0, {"do": "clone", "task": "a", "parameters": {"rate": 0.1}}),
        (10.0, {"do": "clone", "task": "a", "warm": True}),
        (10.0, {"do": "clone", "task": "a", "name": "x/y"}),
    )
    assert answers[1] == {"done": "a, rate=0.1 begins fresh", "task": "a, rate=0.1"}
    clone = next(each for each in found.tasks.values() if each.name == "a, rate=0.1")
    assert (dict(clone.parameters), clone.begins_with, clone.stop.steps) == ({"rate": 0.1}, "", 100)
    assert found.progress[clone.identity].priority == 3
    errors = [answer.get("error", "") for answer in answers]
    assert "it takes ['rate', 'seed'], not 'rat'. Did you mean 'rate'?" in errors[3]
    assert "changed parameters must be an object" in errors[4]
    assert "a task must have a name of its own; 'a, rate=0.1' is pending" in errors[5]
    assert "a task must have saved something to be cloned warm" in errors[6]
    assert "a task's name must be non-empty, without '/'" in errors[7]
    assert set(statuses(found).values()) == {"finished"}


# What clients send, as their threads read it


def request(program, **changes):
    given = to_json(task("a")) | {"program": {"reference": f"{program}:f", "source": "whatever they say"}}
    return {"tasks": [given | changes.pop("task", {})], **changes}


def test_a_program_is_as_its_file_has_it(program):
    (found,) = read_submission(request(program), now=0.0).tasks
    assert found.program.source not in ("", "whatever they say")


@pytest.mark.parametrize(
    ("changes", "error", "because"),
    [
        ({"tasks": []}, InvalidWorkload, "a submission must have a list of tasks, at least one"),
        ({"tasks": "all"}, InvalidWorkload, "a submission must have a list of tasks, at least one"),
        ({"tasks": [3]}, InvalidRecord, "Task must be an object, got 3"),
        ({"task": {"stop": {}}}, InvalidWorkload, "a task must stop after a number of steps or of epochs"),
        ({"task": {"code": "rm"}}, InvalidRecord, "Task must be one with fields among"),
        ({"task": {"begins_with": "ab"}}, InvalidWorkload, "clone one to begin warm"),
        ({"task": {"program": {"reference": "pickle:f"}}}, InvalidWorkload, "which only the submitting process holds"),
        (
            {"task": {"program": {"reference": "a.py:f"}}},
            InvalidWorkload,
            "must be given by its whole path, got 'a.py'",
        ),
        ({"task": {"program": {"reference": "/no/a.py:f"}}}, InvalidWorkload, "task 'a': a program's file must exist"),
        ({"workload": 3}, InvalidWorkload, "a workload's name must be text"),
        ({"priority": -1}, InvalidWorkload, "a priority must be a number greater than 0"),
        ({"task": {"stop": {"steps": 10**400}}}, InvalidRecord, "a submission must have numbers of at most"),
        ({"task": {"stop": {"steps": 10**300}}}, InvalidWorkload, "steps must be at most 9007199254740992"),
        ({"task": {"parameters": {"x": 10**400}}}, InvalidRecord, "a submission must have numbers of at most"),
        ({"task": {"parameters": {"x": DEEP}}}, InvalidRecord, "must be nested at most"),
        ({"task": {"parameters": {"x": LESS_DEEP}}}, InvalidRecord, "a task's parameters must be nested at most"),
        ({"task": {"parameters": {"x": "y" * (2 << 20)}}}, InvalidWorkload, "must take at most 1.0 MiB"),
        ({"deadline_seconds": 10**400}, InvalidRecord, "a deadline must have numbers of at most"),
        ({"workload": "\ud800"}, InvalidWorkload, "a workload's name must be text, and all of it UTF-8"),
        ({"workload": "x" * 1001}, InvalidWorkload, "a workload's name must have at most 1000 characters, got 1001"),
        ({"entity": 3}, InvalidWorkload, "an entity's name must be text, and all of it UTF-8, got 3"),
        ({"deadline_seconds": 90.0}, InvalidWorkload, "a deadline must lie ahead; this one has passed 10 s ago"),
        ({"deadline_seconds": "soon"}, InvalidWorkload, "a deadline must be a time in seconds since 1970, got 'soon'"),
    ],
)
def test_a_submission_that_cannot_be_is_refused(program, changes, error, because):
    with pytest.raises(error, match=r"(?s).*") as caught:
        read_submission(
            request(program, **changes) | ({"tasks": changes["tasks"]} if "tasks" in changes else {}), now=100.0
        )
    assert because in str(caught.value)


def test_a_file_that_is_no_python_is_refused(tmp_path):
    (tmp_path / "a.py").write_text("def f(:")
    with pytest.raises(InvalidWorkload, match="must be valid Python") as caught:
        read_submission(request(tmp_path / "a.py"), now=0.0)
    assert isinstance(caught.value.__cause__, ProgramError)


# Whatever is asked


@pytest.mark.parametrize("decider", [None, SHARED])
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_whatever_is_asked_and_however_often_it_restarts_no_law_is_broken(decider, seed):
    ways = {"on": cluster(2), "decider": decider, "objective": "makespan"}
    chance = random.Random(seed)
    tasks = [task(f"t{n}", steps=chance.randrange(1, 300), family=chance.choice("fgh")) for n in range(6)]

    def asked():
        verb = chance.choice(["pause", "resume", "cancel", "priority", "list", "submit"])
        if verb == "submit":
            return submitting(chance.choice(tasks))
        return {"do": verb, "task": chance.choice(tasks).name, "priority": chance.choice([0.5, 1, 4])}

    def script():
        begin = engine.now()
        return sorted(((begin + chance.uniform(0, 300), asked()) for _ in range(12)), key=lambda line: line[0])

    with Store(None, write=True) as store:
        engine = Ticking(world())  # its worker's disks outlive the daemon
        for _ in range(3):
            until = engine.now() + 300
            serve(store, (0.0, {"do": "list"}), *script(), engine=engine, until=until, **ways)
        lines = [(0.0, {"do": "resume", "task": each.name}) for each in tasks]
        found, _ = serve(store, *lines, engine=engine, **ways)
        assert set(statuses(found).values()) <= {"finished"}
        for record in tasks:
            attempts = [event.attempt for event in events_of(store, "started", record)]
            assert attempts == list(range(1, len(attempts) + 1))
            starts = [event.step for event in events_of(store, "started", record)]
            assert starts == sorted(starts)  # what was saved is never trained again


def test_where_no_decision_can_be_made_it_says_so_and_goes_on(store):
    def allocate(problem):
        tasks = [member.task for family in problem.families for member in family.members]
        if len(tasks) > 1:
            raise NoFeasiblePlan("two are too many")
        return POLICIES["max_min_fairness"](problem)

    found, answers = serve(
        store,
        (0.0, submitting(task("a", steps=500))),
        (100.0, submitting(task("b", steps=100))),
        (300.0, {"do": "list"}),
        (310.0, {"do": "cancel", "task": "a"}),
        decider=Sharing(policy=allocate, round_seconds=ROUND),
    )
    assert answers[2]["tasks"][1]["why"] == "no decision can be made: two are too many"
    assert statuses(found) == {"a": "cancelled", "b": "finished"}
    (warned,) = events_of(store, "warned")
    assert warned.message == "no decision could be made: two are too many"


def test_many_tasks_are_taken_on_at_once(store):
    many = [task(f"t{n}", steps=10) for n in range(3000)]
    script = Script((0.0, submitting(*many)), (0.0, {"do": "list"}), (0.0, submitting(many[0])))
    found = controller(standing(store), store, engine=Ticking(world()), observe=script)
    for line in script.lines:
        found.post("request", request=line[1], reply=script.answers.append)
    found.post("stop")
    found.run()
    assert len(script.answers[1]["tasks"]) == 3000


def test_what_is_answered_shows_no_secret(store):
    one = task("run-hunter22", steps=500, pwd="hunter22")
    _, answers = serve(
        store,
        (0.0, submitting(one)),
        (10.0, {"do": "priority", "task": "run-hunter22", "priority": 2.0}),
        (10.0, {"do": "resume", "task": "run-hunter22"}),
        (10.0, {"do": "pause", "task": "no such task"}),
    )
    assert answers[1]["done"] == "run-*** has priority 2, before 1"
    assert "'run-***' is" in answers[2]["error"]
    assert "one of ['run-***']" in answers[3]["error"]


class Busy:
    """A controller whose thread answers when a test says so, with the number of its answer."""

    def __init__(self):
        self.posted = []

    def post(self, command, *, request, reply):
        self.posted.append((request, reply))

    def now(self):
        return 0.0

    def answer(self, **told):
        _, reply = self.posted.pop(0)
        reply(told)


def ask_meanwhile(answers, request):
    """Ask on a thread of its own; gives the future of its answer once the controller has the request."""
    pool = concurrent.futures.ThreadPoolExecutor(1)
    found = pool.submit(answers, request)
    pool.shutdown(wait=False)
    return found


def wait_for(busy, count):
    while len(busy.posted) < count:
        time.sleep(0.001)


def test_a_busy_controller_lists_as_of_a_moment_ago_unless_something_was_asked_for_since():
    busy = Busy()
    answers = Answers(busy)
    listing = {"do": "list"}

    first = ask_meanwhile(answers, listing)
    wait_for(busy, 1)
    busy.answer(tasks=[1])
    assert first.result(10) == {"tasks": [1]}

    assert answers(listing) == {"tasks": [1]}, "it is busy, and nothing has changed"
    busy.answer(tasks=[2])
    assert answers(listing) == {"tasks": [2]}, "what came late is the last"
    busy.answer(tasks=[2])

    pausing = ask_meanwhile(answers, {"do": "pause", "task": "a"})
    wait_for(busy, 1)
    while_it_waits = ask_meanwhile(answers, listing)
    wait_for(busy, 2)
    busy.answer(done="paused")
    assert pausing.result(10) == {"done": "paused"}
    after = ask_meanwhile(answers, listing)
    wait_for(busy, 2)
    busy.answer(tasks=[3])
    assert while_it_waits.result(10) == {"tasks": [3]}
    assert not after.done(), "the last one may be of before the pause"
    busy.answer(tasks=[4])
    assert after.result(10) == {"tasks": [4]}
