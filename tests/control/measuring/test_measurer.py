"""Which trials are run, and beside which, on a virtual clock."""

import pytest

from dovetail.engines import World
from dovetail.store import Store
from dovetail.vocabulary import Fingerprint, Profile
from tests.control.simulations import RiggedEngine, cluster, controller, events_of, task, workload

SECONDS = {"small": 0.004, "middle": 0.02, "large": 0.05}


def profile(family: str, kind: str, count: int) -> Profile:
    return Profile(family=family, kind=kind, count=count, step_seconds=SECONDS[family] / count**0.1, peak_bytes=1 << 30)


def otherwise(technique: str, family: str, kind: str, count: int) -> Profile:
    """Fused, four small tasks take twice as long as one."""
    return Profile(
        family=family,
        kind=kind,
        count=count,
        technique=technique,
        step_seconds=2 * SECONDS[family],
        peak_bytes=2 << 30,
        knobs={"members": 4},
    )


@pytest.fixture
def engine() -> RiggedEngine:
    tasks = World(fingerprint=lambda task: Fingerprint(family=task.program.function), profile=profile)
    tasks.otherwise = otherwise
    engine = RiggedEngine(tasks)
    small = [task(f"small {n}", family="small", steps=40_000) for n in range(4)]
    others = [task(f"{family} {n}", family=family, steps=3_600) for family in ("middle", "large") for n in range(2)]
    found = controller(workload(*small, *others), Store(None, write=True), on=cluster(2), engine=engine)
    found.reconcile()
    found.measure()
    engine.store = found.store
    return engine


def test_only_what_could_shorten_the_plan_is_tried(engine: RiggedEngine) -> None:
    tried = [(order.family, order.technique, len(order.devices)) for order in engine.orders if order.family]
    alone = [("small", "resident", 1), ("middle", "resident", 1), ("large", "resident", 1)]
    assert tried == [*alone, ("small", "fuse", 1)]


def test_what_a_device_could_measure_does_not_wait_for_another_family(engine: RiggedEngine) -> None:
    ends = {event.profile.technique: event.at_seconds for event in events_of(engine.store, "measured")}
    assert ends["fuse"] == ends["resident"]
