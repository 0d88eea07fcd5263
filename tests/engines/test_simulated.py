import pytest

from dovetail.engines import SimulatedEngine, World
from dovetail.testing.engines import EngineConformance, Ground, drain, ends_of
from dovetail.vocabulary import Cluster, Fingerprint, Kind, Profile

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
    assert end.data["step"] == 25
    # What it goes on from is where it was stopped.
    rest = ground.order(ground.member(task, until_step=75, attempt=2))
    ground.engine.start(rest)
    ground.engine.stop(rest.name, reason="again")
    (end,) = ends_of(task, drain(ground.engine, rest))
    assert end.data["step"] == 25


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
    assert (end.kind, end.data["step"]) == ("lost", 0)
