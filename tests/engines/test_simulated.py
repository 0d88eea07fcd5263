import pytest

from dovetail.engines import Outage, SimulatedEngine, World
from dovetail.testing.engines import EngineConformance, Ground, drain, ends_of
from dovetail.vocabulary import Cluster, Fingerprint, Kind, Profile, read_event

CLUSTER = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)


def world(**options):
    return World(
        fingerprint=lambda task: Fingerprint(family="family"),
        profile=lambda family, kind, count: Profile(
            family=family, kind=kind, count=count, step_seconds=0.01, peak_bytes=0
        ),
        **options,
    )


def engine(**options):
    return SimulatedEngine(world(**options), kind_of=lambda device: "cpu")


def ground_of(engine, home):
    return Ground(engine=engine, cluster=CLUSTER, reference="nowhere.py:tiny", home=home)


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    return ground_of(engine(), tmp_path_factory.mktemp("engine"))


@pytest.fixture
def another():
    return engine()


class TestSimulated(EngineConformance):
    pass


def test_predictions_hold_unless_the_world_is_slower(tmp_path):
    for slowness in (1.0, 2.5):
        ground = ground_of(engine(slowness=lambda order, slowness=slowness: slowness), tmp_path)
        order = ground.order(ground.member(ground.task(), until_step=100))
        ground.engine.start(order)
        drain(ground.engine, order)
        assert ground.engine.now() == pytest.approx(order.predicted_seconds * slowness)


def test_time_jumps_from_end_to_end(tmp_path):
    ground = ground_of(engine(), tmp_path)
    orders = [
        ground.order(ground.member(ground.task(), until_step=steps), device=n) for n, steps in enumerate((30, 10))
    ]
    for order in orders:
        ground.engine.start(order)
    times = []
    for _ in orders:
        ground.engine.wait()
        times.append(ground.engine.now())
    assert times == pytest.approx([0.1, 0.3])


def test_with_nothing_due_nothing_happens(tmp_path):
    quiet = engine()
    assert quiet.wait() == []
    assert quiet.now() == 0.0


def test_a_stopped_order_has_done_its_share_of_steps(tmp_path):
    ground = ground_of(engine(), tmp_path)
    task = ground.task()
    long = ground.order(ground.member(task, until_step=100))
    short = ground.order(ground.member(ground.task(), until_step=25), device=1)
    ground.engine.start(long)
    ground.engine.start(short)
    drain(ground.engine, short)
    ground.engine.stop(long.name, reason="moved")
    (end,) = ends_of(task, drain(ground.engine, long))
    assert end.step == 25
    # What it goes on from is where it was stopped.
    rest = ground.order(ground.member(task, until_step=75, attempt=2))
    ground.engine.start(rest)
    ground.engine.stop(rest.name, reason="again")
    (end,) = ends_of(task, drain(ground.engine, rest))
    assert end.step == 25


def test_what_is_not_saved_is_lost(tmp_path):
    ground = ground_of(engine(), tmp_path)
    task = ground.task()
    long = ground.order(ground.member(task, until_step=100))
    short = ground.order(ground.member(ground.task(), until_step=25), device=1)
    ground.engine.start(long)
    ground.engine.start(short)
    drain(ground.engine, short)
    ground.engine.stop(long.name, reason="spot", save=False)
    (end,) = ends_of(task, drain(ground.engine, long))
    assert (end.kind, end.step) == ("lost", 0)


def test_members_of_a_gang_end_at_their_own_pace(tmp_path):
    ground = ground_of(engine(paces=lambda order: (1.0, 2.0)), tmp_path)
    order = ground.order(ground.member(ground.task(), until_step=10), ground.member(ground.task(), until_step=10))
    ground.engine.start(order)
    first = ground.engine.wait()
    assert (ground.engine.now(), [event.kind for event in first]) == (10.0, ["saved", "finished"])
    last = ground.engine.wait()
    assert (ground.engine.now(), [event.kind for event in last]) == (20.0, ["saved", "finished", "released"])


def test_it_wakes_when_it_is_told_to_and_once(tmp_path):
    ground = ground_of(engine(), tmp_path)
    ground.engine.start(ground.order(ground.member(ground.task(), until_step=1000)))
    ground.engine.wake(3.0)
    assert (ground.engine.wait(), ground.engine.now()) == ([], 3.0)
    assert ground.engine.wait()
    assert ground.engine.now() == 10.0


def test_what_comes_by_itself_comes_at_its_time(tmp_path):
    told = [read_event("warned", at_seconds=at, data={"message": str(at)}) for at in (7.0, 2.0)]
    quiet = engine(happenings=told)
    assert [(event.at_seconds, quiet.now()) for _ in told for event in quiet.wait()] == [(2.0, 2.0), (7.0, 7.0)]
    assert quiet.wait() == []


def test_loading_and_saving_take_time_in_which_no_step_is_done(tmp_path):
    ground = ground_of(engine(paces=lambda order: (1.0,), load_seconds=5.0, save_seconds=2.0), tmp_path)
    task = ground.task()
    order = ground.order(ground.member(task, until_step=100))
    ground.engine.start(order)
    ground.engine.wake(15.0)
    ground.engine.wait()
    ground.engine.stop(order.name, reason="moved")
    (end,) = ends_of(task, drain(ground.engine, order))
    assert (end.kind, end.step, end.at_seconds, ground.engine.now()) == ("stopped", 10, 17.0, 17.0)


def test_parts_of_a_step_are_not_lost_by_stopping(tmp_path):
    ground = ground_of(engine(paces=lambda order: (10.0,)), tmp_path)
    task = ground.task()
    for attempt in range(1, 5):
        order = ground.order(ground.member(task, until_step=3, attempt=attempt))
        ground.engine.start(order)
        ground.engine.wake(ground.engine.now() + 7.0)
        ground.engine.wait()
        ground.engine.stop(order.name, reason="moved")
        (end,) = ends_of(task, drain(ground.engine, order))
        assert end.step == int(7.0 * attempt / 10.0)


def test_devices_that_break_take_along_what_was_not_saved(tmp_path):
    outage = Outage(devices=("n0:0",), at_seconds=100.0, back_seconds=200.0)
    ground = ground_of(engine(paces=lambda order: (1.0,), outages=[outage]), tmp_path)
    task = ground.task()
    order = ground.order(ground.member(task, until_step=500))
    other = ground.order(ground.member(ground.task(), until_step=150), device=1)
    ground.engine.start(order)
    ground.engine.start(other)
    events = drain(ground.engine, order)
    assert [event.kind for event in events] == ["departed", "saved", "lost", "released"]
    assert (ground.engine.now(), events[1].step) == (100.0, 90)  # it saves every 30 s
    # What starts on them meanwhile is lost at once.
    ground.engine.start(again := ground.order(ground.member(task, until_step=500, attempt=2)))
    assert [event.kind for event in drain(ground.engine, again)] == ["lost", "released"]
    assert [event.kind for event in drain(ground.engine, other)] == ["saved", "finished", "released"]
    assert [event.kind for event in ground.engine.wait()] == ["joined"]
    ground.engine.start(last := ground.order(ground.member(task, until_step=100, attempt=3)))
    drain(ground.engine, last)
    assert ground.engine.now() == 210.0


def test_who_runs_says_where_it_is_where_the_world_reports(tmp_path):
    ground = ground_of(engine(paces=lambda order: (2.0,), reports=True), tmp_path)
    ground.engine.start(ground.order(ground.member(ground.task(), until_step=100)))
    ground.engine.wake(11.0)
    (told,) = ground.engine.wait()
    assert (told.kind, told.step, told.steps_per_second) == ("progress", 5, 0.5)
