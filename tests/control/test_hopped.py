"""Tasks that hop between workers of two nodes, which share this machine: what they learn, and through stops."""

import dataclasses

import pytest
import torch

from dovetail import describe
from dovetail.control import Controller, Settings
from dovetail.engines import LocalEngine
from dovetail.store import Store
from dovetail.train import RESIDENT, SessionMember, checkpoint
from dovetail.vocabulary import Cluster, Kind, Stop, Workload

from .hop_program import NODES, STEPS, small, write_shards

pytestmark = [pytest.mark.process, pytest.mark.slow]
EPOCHS = 2


def tasks(folder, order):
    return tuple(
        dataclasses.replace(
            describe.task(
                "tests.control.hop_program:small", name=f"t{n}", epochs=EPOCHS, folder=str(folder), order=order, seed=n
            ),
            stop=Stop(epochs=EPOCHS),
        )
        for n in range(3)
    )


def run(folder, home, order, *, saves=None, observe=lambda found: None):
    cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), nodes=2, memory_bytes=8 << 30)
    workload = Workload(name="hop", tasks=tasks(folder, order))
    engine = LocalEngine(cluster, home=home)
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
            made.reconcile()
            made.run()
            return {made.tasks[task].name: one for task, one in made.progress.items()}, [e for _, e in store.events()]
    finally:
        engine.close()


def alone(task, orders):
    """One device, the same order."""
    training = small(**task.parameters)
    training.batches = dataclasses.replace(training.batches, chosen=orders)
    session = RESIDENT.open([SessionMember(training=training, seed=task.seed)], device=torch.device("cpu"), threads=1)
    for _ in range(EPOCHS * sum(STEPS.values())):
        session.advance()
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
    for task in tasks(data, order):
        state, _ = checkpoint.recover(home / "checkpoints" / task.identity)
        expected = alone(task, chosen.get(task.identity, ()))
        assert all(torch.equal(tensor, state.tensors[name]) for name, tensor in expected.items())
        assert all(span.to_step <= span.until_step for span in found[task.name].spans), "nobody reads on past its shard"
        visited = {span.devices[0].partition(":")[0] for span in found[task.name].spans}
        assert visited == set(NODES.values())


def test_a_node_without_the_data_it_is_labelled_with_is_named(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    write_shards(data)
    (data / "s1").unlink()
    found, _ = run(data, tmp_path / "store", "any")
    assert {one.status for one in found.values()} == {"failed"}
    for one in found.values():
        assert f"node n1 must have shard 's1' at {data}/s1, as 'n1' says of it; it is not there." in one.reason
