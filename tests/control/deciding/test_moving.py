"""Introspection: what runs is placed anew where that ends everything sooner, moving counted in, and not otherwise."""

import dataclasses
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.control import Controller, Settings
from dovetail.engines import SimulatedEngine, World
from dovetail.planning import PLANNERS, best_move, check
from dovetail.planning.problem import Problem
from dovetail.store import Store
from dovetail.vocabulary import (
    Cluster,
    Device,
    Family,
    Fingerprint,
    Kind,
    Member,
    Node,
    Option,
    Placement,
    Profile,
    Rejection,
)
from tests.control.simulations import Faults, RiggedEngine, happened, hasty_planning, task, workload

FAST, SLOW = (Kind(name=name, processor="cuda", memory_bytes=80 << 30) for name in ("fast", "slow"))


def two_kinds() -> Cluster:
    return Cluster(
        kinds=(FAST, SLOW),
        nodes=(Node(name="n", cores=8, memory_bytes=1 << 40),),
        devices=(
            Device(name="n:0", kind="fast", node="n", index=0),
            Device(name="n:1", kind="slow", node="n", index=1),
        ),
    )


def run(*, slow_seconds: float, build_seconds: float = 1.0, steps: tuple[int, int] = (100, 100)) -> Controller:
    """Two tasks on a fast and a slow device."""
    cluster = two_kinds()

    def profile(family: str, kind: str, count: int) -> Profile:
        seconds = 1.0 if kind == "fast" else slow_seconds
        return Profile(
            family=family, kind=kind, count=count, step_seconds=seconds, peak_bytes=1 << 30, build_seconds=build_seconds
        )

    controller = Controller(
        workload(task("a", steps=steps[0]), task("b", steps=steps[1])),
        cluster=cluster,
        store=Store(None, write=True),
        engine=SimulatedEngine(
            World(fingerprint=lambda task: Fingerprint(family="f"), profile=profile),
            kind_of=lambda device: cluster.device(device).kind,
        ),
        planner=PLANNERS["list"],
    )
    controller.reconcile()
    controller.measure()
    controller.run()
    return controller


def spans(controller: Controller) -> dict[str, list[tuple[str, int, int]]]:
    return {
        controller.tasks[identity].name: [(span.devices[0], span.from_step, span.to_step) for span in one.spans]
        for identity, one in controller.progress.items()
    }


def test_what_runs_on_a_slow_device_moves_to_a_fast_one_that_fell_free():
    began = spans(run(slow_seconds=1.8))
    # The one on the slow device had taken 100 / 1.8 steps when the other ended.
    (moved,) = [each for each in began.values() if len(each) == 2]
    assert [device for device, _, _ in moved] == ["n:1", "n:0"]
    assert moved[0][2] == moved[1][1] == pytest.approx(56, abs=1)
    assert moved[1][2] == 100


def test_nothing_moves_where_moving_costs_what_it_saves():
    assert all(len(each) == 1 for each in spans(run(slow_seconds=1.8, build_seconds=30.0)).values())


def test_nothing_moves_for_less_than_predictions_are_worth():
    assert all(len(each) == 1 for each in spans(run(slow_seconds=1.05)).values())


def test_all_is_finished_and_nothing_taken_twice():
    controller = run(slow_seconds=1.8, steps=(60, 100))
    assert {one.status for one in controller.progress.values()} == {"finished"}
    for each in spans(controller).values():
        assert all(before[2] == after[1] for before, after in itertools.pairwise(each))


def test_the_reason_has_numbers():
    controller = run(slow_seconds=1.8)
    (reason,) = [event.reason for _, event in controller.store.events() if event.kind == "stopped"]
    assert "placing it anew ends everything in" in reason
    assert "moving counted in" in reason


def test_what_waits_is_counted():
    # A placement in the way of a long task that only the fast kind can take moves aside for it.
    cluster = two_kinds()
    options = (
        Option(families=("any",), technique="resident", kind="fast", count=1, step_seconds=(1.0,)),
        Option(families=("any",), technique="resident", kind="slow", count=1, step_seconds=(1.2,)),
        Option(families=("big",), technique="resident", kind="fast", count=1, step_seconds=(1.0,)),
    )
    runs = Placement(
        tasks=("a",), steps=(100,), option=options[0], devices=("n:0",), start_seconds=-9.0, duration_seconds=109.0
    )
    families = (
        Family(name="any", members=(Member(task="a", steps=100),)),
        Family(name="big", members=(Member(task="b", steps=100),)),
    )
    problem = Problem(cluster=cluster, families=families, options=options, running=(runs,))
    move = best_move(problem, planner=PLANNERS["search"])
    assert move is not None
    assert (move.before, move.after) == (200.0, 124.0)


def test_a_gang_moves_as_one_and_nobody_of_it_is_placed_before_all_are_back():
    # Two tasks fused on one device; when the other device falls free they part.
    cluster = Cluster.uniform(FAST, devices_per_node=2, cores=8, memory_bytes=1 << 40)

    def profile(family, kind, count):
        return Profile(family=family, kind=kind, count=count, step_seconds=1.0, peak_bytes=1 << 30, build_seconds=1.0)

    def otherwise(technique, family, kind, count):
        if technique == "fuse" and family == "g":
            return Profile(
                family=family,
                kind=kind,
                count=count,
                step_seconds=1.9,
                peak_bytes=1 << 30,
                build_seconds=1.0,
                technique="fuse",
                knobs={"members": 2},
            )
        return Rejection(families=(family,), technique=technique, kind=kind, count=count, reason="it is not for that.")

    class OneByOne(SimulatedEngine):
        """Of what ends at once the first is told first, as sockets do."""

        def wait(self):
            self.later = getattr(self, "later", []) or super().wait()
            first, self.later = self.later[:1], self.later[1:]
            return first

    controller = Controller(
        workload(task("a", steps=300, family="g"), task("b", steps=300, family="g"), task("c", steps=400)),
        cluster=cluster,
        store=Store(None, write=True),
        engine=OneByOne(
            World(
                fingerprint=lambda task: Fingerprint(family=task.program.function), profile=profile, otherwise=otherwise
            ),
            kind_of=lambda device: "fast",
        ),
        planner=PLANNERS["list"],
    )
    controller.reconcile()
    controller.measure()
    controller.run()
    assert {one.status for one in controller.progress.values()} == {"finished"}
    techniques = [event.option.technique for _, event in controller.store.events() if event.kind == "started"]
    assert techniques.count("fuse") == 2
    stopped = [event for _, event in controller.store.events() if event.kind == "stopped"]
    assert len(stopped) == 2


@pytest.mark.parametrize("exact", [False, True])
def test_who_compares_bits_gets_no_technique_that_rounds(exact):
    def otherwise(technique, family, kind, count):
        gang = {"knobs": {"members": 4}} if technique in ("fuse", "beside") else {}
        seconds = 1.0 if technique in ("fuse", "graph") else 3.0
        return Profile(
            family=family, kind=kind, count=count, step_seconds=seconds, peak_bytes=1 << 30, technique=technique, **gang
        )

    cluster = Cluster.uniform(FAST, devices_per_node=1, cores=8, memory_bytes=1 << 40)
    controller = Controller(
        workload(*(task(name, steps=100) for name in "abcd")),
        cluster=cluster,
        store=Store(None, write=True),
        engine=SimulatedEngine(
            World(
                fingerprint=lambda task: Fingerprint(family="f"),
                profile=lambda family, kind, count: Profile(
                    family=family, kind=kind, count=count, step_seconds=1.0, peak_bytes=1 << 30
                ),
                otherwise=otherwise,
            ),
            kind_of=lambda device: "fast",
        ),
        settings=Settings(exact=exact),
        planner=PLANNERS["list"],
    )
    controller.reconcile()
    controller.measure()
    controller.run()
    used = {event.option.technique for _, event in controller.store.events() if event.kind == "started"}
    assert used == ({"beside"} if exact else {"fuse"}), "four in 3 s a step, or in 1 s up to rounding"


def test_without_anything_running_nothing_moves():
    problem = Problem(cluster=two_kinds(), families=(), options=())
    assert best_move(problem, planner=PLANNERS["list"]) is None


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_whatever_moves_everything_ends_and_no_law_is_broken(seed):
    chance, noise = random.Random(seed), random.Random(seed)
    kinds = ["fast"] * chance.randint(1, 2) + ["slow"] * chance.randint(1, 2)
    cluster = Cluster(
        kinds=(FAST, SLOW),
        nodes=(Node(name="n", cores=8, memory_bytes=chance.choice([6, 64]) << 30),),
        devices=tuple(Device(name=f"n:{n}", kind=kind, node="n", index=n) for n, kind in enumerate(kinds)),
    )
    slower = {family: chance.uniform(1, 4) for family in "fgh"}

    def profile(family, kind, count):
        seconds = 1.0 if kind == "fast" else slower[family]
        return Profile(
            family=family, kind=kind, count=count, step_seconds=seconds, peak_bytes=1 << 30, build_seconds=1.0
        )

    tasks = [task(f"t{n}", steps=chance.randrange(1, 300), family=chance.choice("fgh")) for n in range(8)]
    fates = {
        (each.name, attempt): chance.choices([None, 0, 1, "it broke"], [8, 2, 2, 1])[0]
        for each in tasks
        for attempt in range(1, 60)
    }
    engine = RiggedEngine(
        World(
            fingerprint=lambda task: Fingerprint(family=task.program.function),
            profile=profile,
            slowness=lambda order: noise.uniform(0.3, 3.0),
        ),
        Faults(outcome=lambda name, attempt, until: fates.get((name, attempt)) if until > 1 else None),
        kind_of=lambda device: cluster.device(device).kind,
    )
    with Store(None, write=True) as store, hasty_planning():
        controller = Controller(workload(*tasks), cluster=cluster, store=store, engine=engine, planner=PLANNERS["list"])
        controller.reconcile()
        controller.measure()
        controller.run()
        check(happened(store), cluster)
    assert {one.status for one in controller.progress.values()} <= {"finished", "failed"}


def test_what_is_slower_than_was_measured_is_no_reason_to_begin_it_anew() -> None:
    cluster = Cluster.uniform(SLOW, devices_per_node=2)
    one = Option(families=("f",), technique="resident", kind="slow", count=1, step_seconds=(1.0,))
    two = Option(families=("f",), technique="replicate", kind="slow", count=2, step_seconds=(0.95,))
    # A hundred steps are left, which take three times as long as they should.
    runs = Placement(
        tasks=("a",), steps=(200,), option=one, devices=("n0:0",), start_seconds=-300.0, duration_seconds=600.0
    )
    family = Family(name="f", members=(Member(task="a", steps=100),))
    problem = Problem(cluster=cluster, families=(family,), options=(one, two), running=(runs,))
    assert best_move(problem, planner=PLANNERS["list"]) is None
    fast = Option(families=("f",), technique="replicate", kind="slow", count=2, step_seconds=(0.5,))
    move = best_move(dataclasses.replace(problem, options=(one, fast)), planner=PLANNERS["list"])
    assert move is not None
    assert 150.0 < move.after < 160.0


def with_one_that_ends_last(objective: str) -> Problem:
    """A task on a slow device while a fast, dear one idles, and one that ends last whatever is done."""
    cluster = Cluster(
        kinds=(dataclasses.replace(FAST, price_per_hour=10.0), dataclasses.replace(SLOW, price_per_hour=1.0)),
        nodes=(Node(name="n", cores=8, memory_bytes=1 << 40),),
        devices=(
            Device(name="n:0", kind="fast", node="n", index=0),
            Device(name="n:1", kind="slow", node="n", index=1),
            Device(name="n:2", kind="slow", node="n", index=2),
        ),
    )
    slow = Option(families=("any",), technique="resident", kind="slow", count=1, step_seconds=(4.0,))
    fast = dataclasses.replace(slow, kind="fast", step_seconds=(1.0,))
    last = dataclasses.replace(slow, families=("last",))
    runs = [
        Placement(
            tasks=(name,), steps=(steps,), option=option, devices=(f"n:{number}",), start_seconds=-9.0,
            duration_seconds=9.0 + 4.0 * steps,
        )
        for number, (name, steps, option) in enumerate([("a", 100, slow), ("b", 250, last)], start=1)
    ]  # fmt: skip
    families = (
        Family(name="any", members=(Member(task="a", steps=100, weight=3.0),)),
        Family(name="last", members=(Member(task="b", steps=250),)),
    )
    options, running = (slow, fast, last), tuple(runs)
    return Problem(cluster=cluster, families=families, options=options, running=running, objective=objective)


@pytest.mark.parametrize(
    ("objective", "before", "after"),
    [
        ("mean", (400 + 1000) / 2, (104 + 1000) / 2),
        ("weighted", (3 * 400 + 1000) / 4, (3 * 104 + 1000) / 4),
        ("first:1", 400.0, 104.0),
        ("target:chance=0.5", (400 + 1000) / 2, (104 + 1000) / 2),
    ],
)
def test_a_move_is_judged_by_the_objective(objective, before, after):
    move = best_move(with_one_that_ends_last(objective), planner=PLANNERS["list"])
    assert move is not None
    assert move.placement.tasks == ("a",)
    assert (move.before, move.after) == pytest.approx((before, after))


def test_what_saves_nothing_by_the_objective_stays():
    # The last ends when it does; and the fast device would cost more than it saves.
    for objective in ("makespan", "spend:deadline=2h"):
        assert best_move(with_one_that_ends_last(objective), planner=PLANNERS["list"]) is None


def test_money_is_saved_where_the_deadline_allows():
    cluster = two_kinds()
    kinds = tuple(
        dataclasses.replace(each, price_per_hour={"fast": 10.0, "slow": 1.0}[each.name]) for each in (FAST, SLOW)
    )
    fast = Option(families=("f",), technique="resident", kind="fast", count=1, step_seconds=(1.0,))
    slow = dataclasses.replace(fast, kind="slow", step_seconds=(4.0,))
    runs = Placement(
        tasks=("a",), steps=(900,), option=fast, devices=("n:0",), start_seconds=-9.0, duration_seconds=909.0
    )
    problem = Problem(
        cluster=dataclasses.replace(cluster, kinds=kinds),
        families=(Family(name="f", members=(Member(task="a", steps=900),)),),
        options=(fast, slow),
        running=(runs,),
        objective="spend:deadline=2h",
    )
    move = best_move(problem, planner=PLANNERS["list"])
    assert move is not None
    assert (move.before, move.after) == pytest.approx((10.0 * 900 / 3600, 3604 / 3600))
    hurried = dataclasses.replace(problem, objective="spend:deadline=20min")
    assert best_move(hurried, planner=PLANNERS["list"]) is None
