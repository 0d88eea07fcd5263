"""Tasks whose shards lie on nodes, through the whole loop on the simulated engine."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pytest

from dovetail.control import Controller
from dovetail.control.state.shard_tours import ShardPlaces, tour_of
from dovetail.engines import World
from dovetail.planning.hopping import OpenShop, ShopDevice, Tour, shop_bound
from dovetail.store import Store
from dovetail.vocabulary import DataShard, Event, Fingerprint, Node, ShardSet, Task
from dovetail.vocabulary.events import AttemptLost, CheckpointSaved, DevicesReleased, DevicesVacated
from dovetail.vocabulary.shards import UrlProbe

from .simulations import (
    RiggedEngine,
    carry_out,
    cluster,
    controller,
    events_of,
    same_moment,
    statuses,
    task,
    workload,
    world,
)

SHARDS, STEPS = 4, 25


def facts(named: Task, *, order: str = "any", shards: int = SHARDS) -> ShardSet:
    """One shard on each node."""
    pieces = tuple(DataShard(name=f"s{n}", path=f"/data/{n}", batches=STEPS, node=f"n{n}") for n in range(shards))
    return ShardSet(shards=pieces, seed=named.seed, order=order)


def sharded(*, asked: ShardSet | None = None, every: int | None = None, **fields: object) -> World:
    plain = world()
    return dataclasses.replace(
        plain,
        fingerprint=lambda task: Fingerprint(
            family=task.program.function,
            steps_per_epoch=SHARDS * STEPS,
            shards=facts(task, **fields),
            evaluation=asked,
            evaluate_every=every,
        ),
    )


def tasks(count: int, *, epochs: int = 2) -> list[Task]:
    return [task(f"t{n}", steps=epochs * SHARDS * STEPS, seed=n) for n in range(count)]


def start(engine: RiggedEngine, *all_tasks: Task, store: Store | None = None, **fields: Any) -> Controller:
    store = store or Store(None, write=True)
    return controller(workload(*all_tasks), store, engine=engine, on=cluster(1, nodes=SHARDS), **fields)


def run(world: World, *all_tasks: Task) -> tuple[Controller, RiggedEngine]:
    engine = RiggedEngine(world)
    return carry_out(start(engine, *all_tasks)), engine


def visits(engine: RiggedEngine) -> dict[str, list[tuple[str, int]]]:
    """By task, where it trained to which step."""
    found: dict[str, list[tuple[str, int]]] = {}
    for order in engine.orders:
        if order.purpose == "train":
            (member,) = order.members
            found.setdefault(member.task.name, []).append((order.devices[0], member.until_step))
    return found


def orders_read(*engines: RiggedEngine) -> dict[str, set[tuple[tuple[str, ...], ...]]]:
    """By task, the orders in which it reads its shards, as each of its orders says."""
    found: dict[str, set[tuple[tuple[str, ...], ...]]] = {}
    for order in (order for engine in engines for order in engine.orders if order.purpose == "train"):
        (member,) = order.members
        chosen = dict(enumerate(member.shard_orders))
        read = tuple(chosen.get(epoch) or facts(member.task).order_of(epoch) for epoch in range(2))
        found.setdefault(member.task.name, set()).add(read)
    return found


@pytest.mark.parametrize("order", ["any", "seeded"])
def test_every_task_visits_every_shard_where_it_lies_in_its_order(order: str) -> None:
    made, engine = run(sharded(order=order), *tasks(6))
    assert {one.status for one in made.progress.values()} == {"finished"}
    read = {name: found.pop() for name, found in orders_read(engine).items()}
    for name, stops in visits(engine).items():
        due = [f"n{shard[1:]}:0" for epoch in read[name] for shard in epoch]
        assert stops == [(device, STEPS * number) for number, device in enumerate(due, start=1)]
    if order == "seeded":
        assert read == {each.name: tuple(map(facts(each).order_of, range(2))) for each in tasks(6)}


def test_the_makespan_is_near_the_bound() -> None:
    made, _ = run(sharded(), *tasks(16))
    _, plan = made.plans[0]
    assert plan.schedule is not None
    assert plan.gap <= 0.08
    assert len(made.plans) == 1, "a visit that ends as planned calls for no other plan"
    assert {placement.option.technique for placement in plan.schedule.placements} == {"hop"}
    assert "visits of shards: hopping ends in" in plan.explanation[0]
    began = min(one.spans[0].start_seconds for one in made.progress.values())
    ended = max(one.spans[-1].end_seconds or 0.0 for one in made.progress.values())
    assert ended - began <= 1.08 * plan.bound_seconds


ASKED = ShardSet(shards=tuple(DataShard(name=f"e{n}", path=f"/held/{n}", batches=3, node=f"n{n}") for n in (2, 0)))


@pytest.mark.parametrize(
    ("every", "ends"),
    [(None, {100, 200}), (40, set(range(40, 201, 40)))],
)
def test_between_visits_that_train_stand_those_that_evaluate_where_that_data_lies(every, ends) -> None:
    engine = RiggedEngine(sharded(asked=ASKED, every=every))
    store = Store(None, write=True)
    made = carry_out(start(engine, *tasks(3), store=store))
    assert set(statuses(made).values()) == {"finished"}
    assert len(made.plans) == 1, "what is planned includes them"
    for named in tasks(3):
        own = [order for order in engine.orders if order.purpose == "train" and order.members[0].task == named]
        asked = [
            (order.members[0].until_step, order.members[0].evaluates) for order in own if order.members[0].evaluates
        ]
        assert sorted(asked) == sorted((step, shard) for step in ends for shard in ASKED.names)
        assert all(order.devices[0] == f"n{name[1:]}:0" for order in own if (name := order.members[0].evaluates))
        trained = [order.members[0].until_step for order in own if not order.members[0].evaluates]
        assert trained == sorted({*range(STEPS, 201, STEPS), *ends}), "no visit goes past an evaluation"
        assert [order.members[0].final for order in own] == [False] * (len(own) - 1) + [True]
        for order in own:  # each is told what those before it have found
            (member,) = order.members
            before = (
                {
                    shard
                    for step, shard in asked[: asked.index((member.until_step, member.evaluates))]
                    if step == member.until_step
                }
                if member.evaluates
                else set()
            )
            assert set(member.evaluated) == before
    assert len(events_of(store, "shard_evaluated")) == 3 * len(ends) * len(ASKED.names)


class Forgetting(RiggedEngine):
    """Loses the first visit that evaluates of each task, and what it had to say; and of the last one only its end."""

    def _rigged(self, event: Event) -> Iterator[Event]:
        (order,) = [each for each in self.orders if each.members[0].task.identity == event.task][-1:] or [None]
        is_first = order is not None and order.members[0].evaluates and event.attempt == SHARDS + 1
        is_end = event.kind == "finished" and not self._has_lost(event.task)
        if is_first and event.kind == "shard_evaluated":
            return
        if (is_first and event.kind == "stopped") or is_end:
            self.lost.add((event.task, event.kind))
            yield same_moment(AttemptLost, event, reason="its worker died")
        else:
            yield from super()._rigged(event)

    def __init__(self, found: World) -> None:
        super().__init__(found)
        self.lost: set[tuple[str, str]] = set()

    def _has_lost(self, task: str) -> bool:
        return (task, "finished") in self.lost


def test_an_evaluation_is_made_again_only_where_it_was_lost() -> None:
    store, engine = Store(None, write=True), Forgetting(sharded(asked=ASKED))
    made = carry_out(start(engine, *tasks(2, epochs=1), store=store))
    assert set(statuses(made).values()) == {"finished"}
    assert {kind for _, kind in engine.lost} == {"stopped", "finished"}
    for named in tasks(2, epochs=1):
        asked = [
            order.members[0].evaluates
            for order in engine.orders
            if order.purpose == "train" and order.members[0].task == named and order.members[0].evaluates
        ]
        # The first again, since nothing is known of it; and one to say that the task is finished.
        assert len(asked) == len(ASKED.names) + 2
        assert set(asked) == set(ASKED.names)


class Losing(RiggedEngine):
    """Loses each task's third visit half way, after a save."""

    def _rigged(self, event: Event) -> Iterator[Event]:
        if event.kind == "stopped" and event.attempt == 3:
            yield same_moment(CheckpointSaved, event, step=event.step - STEPS // 2)
            yield same_moment(AttemptLost, event, reason="its worker died")
        else:
            yield from super()._rigged(event)


def test_an_order_once_chosen_is_kept_through_losses() -> None:
    engine = Losing(sharded())
    made = carry_out(start(engine, *tasks(4)))
    assert set(statuses(made).values()) == {"finished"}
    assert all(len(found) == 1 for found in orders_read(engine).values())
    for name, stops in visits(engine).items():
        ((first, second),) = orders_read(engine)[name]
        at = {step: device for device, step in stops}
        assert at == {STEPS * n: f"n{shard[1:]}:0" for n, shard in enumerate((*first, *second), start=1)}
        assert [step for _, step in stops].count(3 * STEPS) == 2, "the third visit is made again, to its end"


class SavingBeside(RiggedEngine):
    """Frees the device of every visit one turn before it says that the visit is saved; tells what was fetched."""

    def __init__(self, found: World) -> None:
        super().__init__(found)
        self._later: list[Event] = []
        self.fetched: list[tuple[str, str]] = []

    def fetch(self, devices: tuple[str, ...], directory: str) -> None:
        self.fetched.append((devices[0], directory))

    def wait(self) -> list[Event]:
        if self._later:
            found, self._later = self._later, []
            return found
        events = super().wait()
        visited = {event.task for event in events if event.kind == "stopped"}
        over = {order.name: order.members[0].task.identity for order in self.orders}
        self._later = [event for event in events if event.task in visited or over.get(_placement(event)) in visited]
        vacated = [event for event in self._later if event.kind == "released"]
        now = [event for event in events if event not in self._later]
        return [*now, *(DevicesVacated(at_seconds=each.at_seconds, placement=_placement(each)) for each in vacated)]


def _placement(event: Event) -> str:
    return event.placement if isinstance(event, DevicesReleased) else ""


def test_a_device_takes_the_next_visit_while_the_last_is_saved_and_a_task_waits_for_its_own_save() -> None:
    engine = SavingBeside(sharded())
    made = carry_out(start(engine, *tasks(6)))
    assert set(statuses(made).values()) == {"finished"}
    assert len(made.plans) == 1
    for name, stops in visits(engine).items():
        ((first, second),) = orders_read(engine)[name]
        due = [f"n{shard[1:]}:0" for shard in (*first, *second)]
        assert stops == [(device, STEPS * number) for number, device in enumerate(due, start=1)]
    assert engine.fetched, "what comes next is fetched while a device is busy"
    assert {device for device, _ in engine.fetched} <= {f"n{n}:0" for n in range(SHARDS)}


def test_an_order_once_chosen_is_kept_by_the_next_controller() -> None:
    store, first, second = Store(None, write=True), RiggedEngine(sharded()), RiggedEngine(sharded())

    def stop(found: Controller) -> None:
        if len([order for order in first.orders if order.purpose == "train"]) > 10 and not found.stopping:
            found.post("stop", reason="enough")

    carry_out(start(first, *tasks(4), store=store, observe=stop))
    made = carry_out(start(second, *tasks(4), store=store))
    assert set(statuses(made).values()) == {"finished"}
    assert all(len(found) == 1 for found in orders_read(first, second).values())
    assert len(events_of(store, "order_chosen")) == 4


def test_a_tour_goes_on_within_a_shard_and_ends_where_it_is_told_to() -> None:
    known = ShardSet(shards=tuple(DataShard(name=n, url=n, batches=10) for n in "abc"), order="any")
    chosen = {0: ("c", "a", "b"), 1: ("b", "c", "a")}
    tour = tour_of(known, homes={}, chosen=chosen, start=15, until=45)
    assert tour.epochs == ((("a", 5), ("b", 10)), (("b", 10), ("c", 5)))
    assert tour.is_ordered
    assert not tour_of(known, homes={}, chosen={}, start=30, until=60).is_ordered
    assert tour_of(known, homes={}, chosen={}, start=30, until=60).first_epoch == 1
    assert tour_of(known, homes={}, chosen={}, start=31, until=60).is_ordered


def labelled(*labels: dict[str, str]):
    plain = cluster(1, nodes=len(labels))
    nodes = tuple(dataclasses.replace(node, labels=each) for node, each in zip(plain.nodes, labels, strict=True))
    return dataclasses.replace(plain, nodes=nodes)


LEFT = DataShard(name="left", path="/data/left", batches=4, node="site=left")


@pytest.mark.parametrize(
    ("shard", "found", "homes", "wrong"),
    [
        (LEFT, {"n0": ["/data/left"], "n1": []}, ("n0",), ""),
        (LEFT, None, ("n0",), ""),
        (LEFT, {"n0": [], "n1": []}, (), "node n0 must have shard 'left' at /data/left, as 'site=left' says of it"),
        (LEFT, {"n0": [], "n1": ["/data/left"]}, (), "node n0 must have shard 'left'"),
        (dataclasses.replace(LEFT, node=""), {"n0": [], "n1": ["/data/left"]}, ("n1",), ""),
        (dataclasses.replace(LEFT, node=""), {"n0": [], "n1": []}, (), "/data/left exists on none of n0, n1"),
        (dataclasses.replace(LEFT, node="site=up"), {"n0": [], "n1": []}, (), "and none is 'site=up'"),
        (dataclasses.replace(LEFT, node="n1"), {"n0": [], "n1": ["/data/left"]}, ("n1",), ""),
        (dataclasses.replace(LEFT, path="", url="s3://bucket/left"), {}, ("n0",), ""),
        (dataclasses.replace(LEFT, path="", url="s3://bucket/left", node=""), {}, ("n0", "n1"), ""),
    ],
)
def test_a_shard_lies_where_labels_and_paths_say(shard, found, homes, wrong) -> None:
    places = ShardPlaces(lambda paths: found)
    where, why = places.homes(ShardSet(shards=(shard,)), labelled({"site": "left"}, {"site": "right"}))
    assert wrong in why if wrong else (where, why) == ({"left": homes}, "")


class Probing:
    """A node that reads a megabyte a second, but nothing that is broken, and says nothing of what is silent."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def __call__(self, readers: Mapping[str, str]) -> dict[str, UrlProbe | None]:
        self.asked.append([url.removeprefix("http://") for url in readers])
        found = UrlProbe(size_bytes=5_000_000, bytes_per_second=1e6)
        return {url: None if "broken" in url else found for url in readers if "silent" not in url}


def read_twice(*shards: tuple[str, int]) -> tuple[dict[str, float], list[list[str]]]:
    """How long it takes to read these from another node, and for which it was asked, when that is asked for twice."""
    probing = Probing()
    facts = ShardSet(
        shards=tuple(
            DataShard(name=place, url=f"http://{place}", node="site=left", batches=4, size_bytes=size)
            for place, size in shards
        )
    )
    on = labelled({"site": "left"}, {"site": "right"})
    places = ShardPlaces(lambda paths: None, probing)
    homes, _ = places.homes(facts, on)
    found = places.read_seconds(facts, homes, on)
    assert found == places.read_seconds(facts, homes, on)
    return {name: round(seconds, 1) for name, seconds in found.items()}, probing.asked


def test_what_comes_from_elsewhere_is_read_once_for_each_place() -> None:
    found, asked = read_twice(("near/a", 3_000_000), ("near/b", 9_000_000), ("near/c", 0))
    assert found == {"near/a": 3, "near/b": 9, "near/c": 5}
    assert asked == [["near/a", "near/c"]]


def test_a_file_that_cannot_be_read_says_nothing_of_others_beside_it() -> None:
    found, asked = read_twice(("near/broken", 3_000_000), ("near/b", 9_000_000))
    assert found == {"near/b": 9}
    assert asked == [["near/broken"], ["near/b"]]


def test_a_place_of_which_two_files_cannot_be_read_is_not_offered() -> None:
    found, asked = read_twice(*((f"far/broken-{number}", 1_000_000) for number in range(9)))
    assert found == {}
    assert asked == [["far/broken-0"], ["far/broken-1"]]


def test_a_place_that_nobody_answers_for_is_read_at_the_rate_of_links() -> None:
    found, asked = read_twice(("silent/a", 1_250_000_000))
    assert found == {"silent/a": 10.0}
    assert asked == [["silent/a"]]


def test_a_task_whose_shard_lies_nowhere_fails_with_the_reason() -> None:
    class Searching(RiggedEngine):
        def find(self, paths: Collection[str]) -> dict[str, list[str]]:
            return {f"n{n}": [f"/data/{n}"] if n else [] for n in range(SHARDS)}

    made = carry_out(start(Searching(sharded()), *tasks(1)))
    (one,) = made.progress.values()
    assert one.status == "failed"
    assert "node n0 must have shard 's0' at /data/0, as 'n0' says of it; it is not there." in one.reason


def test_where_every_node_has_all_shards_nothing_hops() -> None:
    def everywhere(task: Task) -> ShardSet:
        return ShardSet(shards=tuple(dataclasses.replace(each, node="") for each in facts(task).shards))

    plain = sharded()
    found = dataclasses.replace(
        plain, fingerprint=lambda task: dataclasses.replace(plain.fingerprint(task), shards=everywhere(task))
    )
    made, engine = run(found, *tasks(4))
    assert {one.status for one in made.progress.values()} == {"finished"}
    assert {order.technique for order in engine.orders if order.purpose == "train"} == {"resident"}
    assert Node(name="n0", cores=1, memory_bytes=1).labels == {}


def test_the_bound_of_the_plan_is_that_of_the_shop() -> None:
    made, _ = run(sharded(), *tasks(4, epochs=1))
    where = {f"s{n}": {f"n{n}:0": float(STEPS)} for n in range(SHARDS)}
    tours = tuple(Tour(task=f"t{n}", epochs=(tuple(where),), visit_seconds=where) for n in range(4))
    devices = tuple(ShopDevice(name=f"n{n}:0", node=f"n{n}") for n in range(SHARDS))
    least = shop_bound(OpenShop(devices=devices, tours=tours))
    assert made.plans[0][1].bound_seconds == pytest.approx(least, rel=0.01)
