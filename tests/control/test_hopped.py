"""Tasks that hop between workers of two nodes, which share this machine: what they learn, and through stops."""

import dataclasses

import psutil
import pytest
import torch

from dovetail import describe
from dovetail.control import Controller, Settings
from dovetail.engines.worker import PROCESS_NAME
from dovetail.store import Store, clear_scratch
from dovetail.train import RESIDENT, SessionMember, checkpoint
from dovetail.vocabulary import Cluster, Kind, Stop, Workload
from tests.engines.forking import forking_engine

from .hop_program import ASKED, NODES, STEPS, small, write_shards

pytestmark = [pytest.mark.process, pytest.mark.slow]
EPOCHS = 2


def tasks(folder, order, **fields):
    return tuple(
        dataclasses.replace(
            describe.task(
                "tests.control.hop_program:small",
                name=f"t{n}",
                epochs=EPOCHS,
                folder=str(folder),
                order=order,
                seed=n,
                copy=order == "seeded",
                **fields,
            ),
            stop=Stop(epochs=EPOCHS),
        )
        for n in range(3)
    )


def run(folder, home, order, *, saves=None, observe=lambda found: None, hear=lambda events: None, on=None, **fields):
    """On two nodes of this machine, or on those of `on`: a cluster, and what makes an engine of it."""
    cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), nodes=2, memory_bytes=8 << 30)
    cluster, make_engine = on or (cluster, forking_engine)
    workload = Workload(name="hop", tasks=tasks(folder, order, **fields))
    engine = make_engine(cluster, home=home)
    try:
        with Store(home, write=True) as store:
            made = Controller(
                workload,
                cluster=cluster,
                store=store,
                engine=engine,
                settings=Settings(save_every_steps=saves, exact=True),
                observe=observe,
            )
            made.listen(hear)
            made.reconcile()
            made.run()
            return {made.tasks[task].name: one for task, one in made.progress.items()}, [e for _, e in store.events()]
    finally:
        engine.close()


def alone(task, orders, *, evaluations=None, every=0):
    """One device, the same order; what evaluating there gives goes into `evaluations`."""
    training = small(**task.parameters)
    training.batches = dataclasses.replace(training.batches, chosen=orders)
    session = RESIDENT.open([SessionMember(training=training, seed=task.seed)], device=torch.device("cpu"), threads=1)
    for _ in range(EPOCHS * sum(STEPS.values())):
        (report,) = session.advance()
        if every and (report.step % every == 0 or report.step == EPOCHS * sum(STEPS.values())):
            evaluations[report.step] = session.evaluate()["error"]
    return session.state().tensors


@pytest.mark.parametrize("order", ["any", "seeded"])
def test_hopping_learns_what_one_device_learns_over_the_same_order_to_the_bit(tmp_path, order):
    data, home = tmp_path / "data", tmp_path / "store"
    data.mkdir()
    write_shards(data)
    starts = []

    def stop(found):
        starts[:] = [each for each in found.progress.values() if len(each.spans) >= 2]
        if starts and not found.stopping:
            found.post("stop", reason="half way")

    run(data, home, order, saves=2, observe=stop)
    found, events = run(data, home, order)
    assert {one.status for one in found.values()} == {"finished"}, [one.reason for one in found.values()]
    chosen = {event.task: event.orders for event in events if event.kind == "order_chosen"}
    assert len(chosen) == (3 if order == "any" else 0)
    assert {event.option.technique for event in events if event.kind == "started"} == {"hop"}
    if order == "seeded":
        reads = (data / "reads").read_text().split()
        assert len(set(reads)) == 1 < len(reads), "one copy, read in every visit"
    clear_scratch(home)  # as whoever holds the store's lock does at its end
    assert not any((home / "scratch").glob("shards-*"))
    for task in tasks(data, order):
        state, _ = checkpoint.recover(home / "checkpoints" / task.identity)
        expected = alone(task, chosen.get(task.identity, ()))
        assert all(torch.equal(tensor, state.tensors[name]) for name, tensor in expected.items())
        assert all(span.to_step <= span.until_step for span in found[task.name].spans), "nobody reads on past its shard"
        visited = {span.devices[0].partition(":")[0] for span in found[task.name].spans}
        assert visited == set(NODES.values())


def test_workers_that_are_killed_in_the_middle_of_hops_change_nothing(tmp_path):
    data, home, killed = tmp_path / "data", tmp_path / "store", []
    data.mkdir()
    write_shards(data)

    def kill(events):
        if len(killed) < 2 and any(event.kind == "vacated" for event in events):
            workers = [each for each in psutil.Process().children() if each.name() == PROCESS_NAME]
            killed.append([each.pid for each in workers])
            for each in workers:
                each.kill()

    found, events = run(data, home, "any", hear=kill)
    assert {one.status for one in found.values()} == {"finished"}, [one.reason for one in found.values()]
    assert len(killed) == 2
    assert any(event.kind == "lost" for event in events)
    chosen = [event for event in events if event.kind == "order_chosen"]
    assert len(chosen) == 3, "an order is chosen once, whatever is lost"
    for task in tasks(data, "any"):
        state, _ = checkpoint.recover(home / "checkpoints" / task.identity)
        (orders,) = (event.orders for event in chosen if event.task == task.identity)
        assert all(torch.equal(tensor, state.tensors[name]) for name, tensor in alone(task, orders).items())


@pytest.mark.parametrize("every", [sum(STEPS.values()), 4])
def test_evaluation_hops_to_its_own_shards_and_gives_what_one_device_gives_to_the_bit(tmp_path, every):
    """At the ends of epochs, where the planner chooses the order, and within visits; through a stop, and workers that
    are killed as soon as a shard was evaluated."""
    data, home, killed = tmp_path / "data", tmp_path / "store", []
    data.mkdir()
    write_shards(data)

    def kill(events):
        if len(killed) < 2 and any(event.kind == "shard_evaluated" for event in events):
            workers = [each for each in psutil.Process().children() if each.name() == PROCESS_NAME]
            killed.append([each.pid for each in workers])
            for each in workers:
                each.kill()

    def stop(found):
        if len(killed) == 2 and not found.stopping:
            found.post("stop", reason="half way")

    fields = {"asked": True, "every": every}
    run(data, home, "any", observe=stop, hear=kill, **fields)
    found, events = run(data, home, "any", **fields)
    assert len(killed) == 2
    check_evaluated(data, home, found, events, every=every)


def check_evaluated(data, home, found, events, *, every):
    """Whether tasks that were evaluated on shards are as on one device, and were where those lie."""
    fields = {"asked": True, "every": every}
    assert {one.status for one in found.values()} == {"finished"}, [one.reason for one in found.values()]
    chosen = {event.task: event.orders for event in events if event.kind == "order_chosen"}
    assert len(chosen) == (3 if every == sum(STEPS.values()) else 0)
    started = {(event.task, event.attempt): event for event in events if event.kind == "started"}
    evaluated = [event for event in events if event.kind == "shard_evaluated"]
    for event in evaluated:
        assert started[event.task, event.attempt].devices[0].startswith(ASKED[event.shard]), "where it lies"
    with Store(home) as store:
        for task in tasks(data, "any", **fields):
            expected = {}
            tensors = alone(task, chosen.get(task.identity, ()), evaluations=expected, every=every)
            state, _ = checkpoint.recover(home / "checkpoints" / task.identity)
            assert all(torch.equal(tensor, state.tensors[name]) for name, tensor in tensors.items())
            points = {point.step: point.value for point in store.points(task.identity) if point.name == "error"}
            assert points == expected
            assert found[task.name].metrics["error"] == expected[max(expected)]
            asked = {(event.step, event.shard) for event in evaluated if event.task == task.identity}
            assert asked == {(step, shard) for step in expected for shard in ASKED}


def test_a_node_without_the_data_it_is_labelled_with_is_named(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    write_shards(data)
    (data / "s1").unlink()
    found, _ = run(data, tmp_path / "store", "any")
    assert {one.status for one in found.values()} == {"failed"}
    for one in found.values():
        assert f"node n1 must have shard 's1' at {data}/s1, as 'n1' says of it; it is not there." in one.reason
