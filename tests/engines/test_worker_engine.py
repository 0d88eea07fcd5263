"""When workers count as lost, with workers that only a test knows and a clock that it sets."""

import itertools
import types

import pytest

from dovetail.engines import worker_engine
from dovetail.engines.base import MemberOrder, Order
from dovetail.engines.worker_engine import WAIT_SECONDS, WorkerEngine
from dovetail.engines.worker_handle import WorkerHandle
from dovetail.vocabulary import Cluster, Kind, Program, Stop, Task

CLUSTER = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
SILENCE_SECONDS = 20.0
BEAT = {"doing": "step 1", "notice": False, "idle": 0.0}


class Scripted(WorkerHandle):
    """A worker that says what a test has it say."""

    def __init__(self, devices, lane, clock):
        self.devices, self.lane = devices, lane
        self.order, self.doing, self.heard_at = "", "starting", clock()
        self.killed, self.told = "", []

    def begin(self, order, message):
        self.order = order

    def send(self, message):
        self.told.append(message)

    def kill(self, why):
        self.killed = self.killed or why

    def exited(self, seconds):
        return True

    def reason(self):
        return self.killed

    def ending(self):
        return ""

    def log_tail(self):
        return ""


class ScriptedEngine(WorkerEngine):
    """Each `wait` takes so many seconds, and hears these messages by device and lane. On the first several workers can
    compute at once."""

    def __init__(self, *arguments, clock, **options):
        super().__init__(*arguments, **options)
        self.clock, self.script = clock, {}

    def listen(self, *, seconds=WAIT_SECONDS, **said):
        self.seconds, self.said = seconds, {f"n0:{name[1:]}": messages for name, messages in said.items()}
        return self.wait()

    def _start_worker(self, devices, lane=0):
        return Scripted(devices, lane, self.clock)

    def _has_lanes(self, devices):
        return devices == ("n0:0",)

    def _receive(self, seconds):
        self.clock.now += self.seconds
        for worker in list(self._workers.values()):
            name = "_".join([worker.devices[0], *([str(worker.lane)] if worker.lane else [])])
            if name in self.said and self._workers.get(worker.place) is worker:
                worker.heard_at = self.clock()
                yield worker, self.said[name]

    def _disconnect(self, worker):
        pass

    def _make_rendezvous(self, order, workers):
        return ""

    def _remove_rendezvous(self, order):
        pass


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def engine(tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(worker_engine, "time", types.SimpleNamespace(monotonic=clock, time=clock))
    return ScriptedEngine(CLUSTER, home=tmp_path, silence_seconds=SILENCE_SECONDS, clock=clock)


numbers = itertools.count()


def begin(engine, *devices, technique="resident"):
    task = Task(name=f"t{next(numbers)}", program=Program(reference="a.py:f"), stop=Stop(steps=9))
    order = Order(
        name=task.name,
        purpose="train",
        members=(MemberOrder(task=task, attempt=1, until_step=9),),
        devices=devices,
        technique=technique,
    )
    engine.start(order)
    return order, [engine._workers[(device,), 0] for device in devices]


def kinds(events):
    return [event.kind for event in events]


def test_who_is_listened_to_and_silent_is_lost(engine):
    _, (worker,) = begin(engine, "n0:0")
    _, (other,) = begin(engine, "n0:1")
    heard = []
    while not worker.killed:
        heard += engine.listen(w1=[BEAT])
    assert kinds(heard) == ["lost", "released"]
    assert worker.killed == "no heartbeat for 20 s, the limit is 20 s"
    assert not other.killed


def test_a_controller_that_was_stopped_hears_what_was_sent_before_it_judges(engine):
    _, (worker,) = begin(engine, "n0:0")
    engine.listen(seconds=50.0)  # as a select that was interrupted returns: late, and with nothing
    engine.listen(w0=[BEAT])
    engine.clock.now += 500.0  # planning
    engine.listen()
    for _ in range(3):
        engine.listen(seconds=50.0)
        engine.listen()
    assert not worker.killed


def test_who_is_silent_before_and_after_a_stop_is_lost_all_the_same(engine):
    _, (worker,) = begin(engine, "n0:0")
    for _ in range(30):
        engine.listen()
    engine.listen(seconds=50.0)
    assert not worker.killed
    for _ in range(15):
        engine.listen()
    assert worker.killed.startswith("no heartbeat for 20 s")


def test_a_rank_whose_release_was_sent_while_the_controller_was_stopped_is_in_time(engine):
    order, (first, second) = begin(engine, "n0:0", "n0:1", technique="replicate")
    engine.listen(w0=[BEAT], w1=[BEAT])
    end = {"kind": "finished", "task": order.members[0].task.identity, "attempt": 1, "at_seconds": engine.now()}
    released = {"released": order.name, "seconds": {}}
    events = engine.listen(w0=[{"event": {**end, "data": {"step": 9}}}, released])
    events += engine.listen(seconds=60.0)
    events += engine.listen(w1=[released])
    assert kinds(events) == ["finished", "released"]
    assert not first.killed
    assert not second.killed


@pytest.mark.parametrize(
    "message",
    [
        {"event": {"kind": "flew"}},
        {"event": {"kind": "departed", "at_seconds": 1.0, "data": {"devices": ["n0:1"]}}},
        {"event": {"kind": "progress", "task": "another", "attempt": 1, "at_seconds": 1.0, "data": {"step": 1}}},
    ],
)
def test_what_one_worker_sends_and_nobody_can_read_is_its_own_loss(engine, message):
    order, (worker,) = begin(engine, "n0:0")
    _, (other,) = begin(engine, "n0:1")
    events = engine.listen(w0=[message, BEAT], w1=[BEAT])
    assert [(event.kind, event.task) for event in events] == [
        ("lost", order.members[0].task.identity),
        ("released", ""),
    ]
    assert worker.killed.startswith("what it sent cannot be read: ")
    assert not other.killed


def said(order, kind, **data):
    (member,) = order.members
    heading = {"kind": kind, "task": member.task.identity, "attempt": 1, "at_seconds": 1000.0}
    return {"event": {**heading, "data": data}, "order": order.name}


SAVED = {"step": 9, "path": "p", "bytes": 1, "best_step": None}


def test_a_device_that_is_vacated_has_the_next_order_while_the_first_is_saved(engine):
    first, (worker,) = begin(engine, "n0:0", technique="hop")
    assert kinds(engine.listen(d0=[BEAT, {"vacated": first.name}])) == ["vacated"]
    second, (same,) = begin(engine, "n0:0", technique="hop")
    assert same is worker
    saving = [said(first, "saved", **SAVED), said(first, "stopped", step=9, reason="its shard is read")]
    events = engine.listen(d0=[*saving, {"released": first.name}, said(second, "progress", step=1)])
    assert [(event.kind, getattr(event, "placement", "")) for event in events] == [
        ("saved", ""),
        ("stopped", ""),
        ("released", first.name),
        ("progress", ""),
    ]
    assert worker.order == second.name, "who is released is the first"
    assert not worker.killed


def test_a_worker_that_is_lost_while_it_saves_loses_both_its_orders(engine):
    first, (worker,) = begin(engine, "n0:0", technique="hop")
    engine.listen(d0=[BEAT, {"vacated": first.name}])
    second, _ = begin(engine, "n0:0", technique="hop")
    worker.kill("an end")
    events = engine.listen(d0=None)
    assert kinds(events) == ["lost", "released", "lost", "released"]
    assert {event.task for event in events if event.task} == {each.members[0].task.identity for each in (first, second)}


def test_who_still_saves_is_neither_stopped_for_being_idle_nor_killed_for_its_order(engine):
    first, (worker,) = begin(engine, "n0:0", technique="hop")
    engine.listen(d0=[BEAT, {"vacated": first.name}, {"notice": True}])
    engine.stop(first.name, reason="at once", save=False)
    assert not worker.killed
    assert engine._workers[worker.place] is worker
    engine.listen(d0=[said(first, "stopped", step=9, reason="its shard is read"), {"released": first.name}])
    assert worker.place not in engine._workers, "it was given notice, and is free"


def test_who_was_given_notice_while_it_saves_stops_what_it_is_given_next(engine):
    first, (worker,) = begin(engine, "n0:0", technique="hop")
    engine.listen(d0=[BEAT, {"vacated": first.name}, {"notice": True}])
    second, _ = begin(engine, "n0:0", technique="hop")
    (told,) = [message for message in worker.told if message["do"] == "stop"]
    assert (told["name"], told["reason"]) == (second.name, "the worker on n0:0 was given notice")


def test_an_order_of_another_worker_is_not_spoken_for(engine):
    first, _ = begin(engine, "n0:0")
    begin(engine, "n0:1")
    assert engine.listen(d0=[BEAT], d1=[BEAT, {"vacated": first.name}, {"released": first.name}]) == []


def build(engine, count, *, lanes, device="n0:0"):
    """An order that builds so many tasks, shared with idle workers in so many lanes."""
    for lane in range(1, lanes + 1):
        engine._worker_for(((device,), lane))
    tasks = [
        Task(name=f"t{next(numbers)}", program=Program(reference="a.py:f"), stop=Stop(steps=9)) for _ in range(count)
    ]
    members = tuple(MemberOrder(task=task) for task in tasks)
    order = Order(name=tasks[0].name, purpose="fingerprint", members=members, devices=(device,))
    engine.start(order)
    workers = [engine._workers[(device,), lane] for lane in range(lanes + 1)]
    return order, [task.identity for task in tasks], workers


def built(task, kind, **data):
    return {"event": {"kind": kind, "task": task, "attempt": 0, "at_seconds": 1000.0, "data": data}}


def ends(events):
    return [(event.kind, event.task) for event in events]


MEMORY = {"cause": "memory", "reason": "it ran out of memory", "log": "a traceback"}


def test_who_runs_out_of_memory_while_others_build_is_built_again_and_who_does_so_alone_has_failed(engine):
    order, (one, other), _ = build(engine, 2, lanes=1)
    (lost,) = engine.listen(w0=[built(one, "failed", **MEMORY)])
    assert (lost.kind, lost.task, lost.reason, lost.log) == ("lost", one, MEMORY["reason"], MEMORY["log"])
    failing = built(other, "failed", cause="program", reason="it raised")
    assert kinds(engine.listen(w0_1=[failing])) == ["failed"], "that is no matter of who else builds"
    released = {"released": order.name, "seconds": {}}
    assert kinds(engine.listen(w0=[released], w0_1=[released])) == ["released"]
    _, (alone,), _ = build(engine, 1, lanes=1)
    assert ends(engine.listen(w0=[built(alone, "failed", **MEMORY)])) == [("failed", alone)]


def test_after_one_task_has_failed_who_builds_the_others_takes_as_long_as_that_takes(engine):
    _, (bad, good), (worker,) = build(engine, 2, lanes=0)
    failing = built(bad, "failed", cause="program", reason="it raised")
    assert ends(engine.listen(w0=[failing])) == [("failed", bad)]
    for _ in range(100):
        assert engine.listen(w0=[BEAT]) == []
    assert not worker.killed
    assert good in engine._running[worker.order].tasks


def test_where_a_worker_says_over_which_task_it_ends_the_next_one_is_not_to_blame(engine):
    _, tasks, _ = build(engine, 6, lanes=1)
    told = built(tasks[3], "lost", reason="a fault on the device, which ends all processes that share it")
    assert ends(engine.listen(w0_1=[told])) == [("lost", tasks[3])]
    assert engine.listen(w0_1=None) == []


def test_who_ran_out_of_memory_goes_on_with_the_next_one_which_may_end_its_worker(engine):
    _, tasks, _ = build(engine, 6, lanes=1)
    assert ends(engine.listen(w0_1=[built(tasks[3], "failed", **MEMORY)])) == [("lost", tasks[3])]
    assert ends(engine.listen(w0_1=None)) == [("lost", tasks[4])]


def test_who_has_released_its_share_is_not_killed_with_those_that_have_not(engine):
    order, _, (first, lane) = build(engine, 2, lanes=1)
    engine.listen(w0_1=[{"released": order.name, "seconds": {}}])
    engine.stop(order.name, reason="at once", save=False)
    assert (first.killed, lane.killed) == ("at once", "")


def test_after_a_lane_was_lost_while_it_built_no_lane_builds(engine):
    order, _, (first, *_) = build(engine, 3, lanes=2)
    assert kinds(engine.listen(w0_1=None)) == ["lost"]
    released = {"released": order.name, "seconds": {}}
    assert kinds(engine.listen(w0=[released], w0_2=[released]))[-1] == "released"
    order, *_ = build(engine, 3, lanes=2)
    assert engine._running[order.name].workers == [first]


def test_the_notice_of_one_worker_ends_what_it_builds_and_nothing_that_others_build(engine):
    order, _, (first, lane, other) = build(engine, 3, lanes=2)
    engine.listen(w0_1=[{"notice": True}])
    assert (first.killed, lane.killed, other.killed) == ("", "the worker on n0:0 was given notice", "")
    assert order.name in engine._running
