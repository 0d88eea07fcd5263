"""Gangs of four ranks over two and four Ray nodes of this machine learn, to the bit, what they learn on one."""

import contextlib
import dataclasses

import pytest
import torch

from dovetail.engines.ray import RayEngine
from dovetail.testing.engines import Ground, drain, ends_of, write_program
from dovetail.train import checkpoint
from tests.engines.ray.ray_clusters import needs_ray, patiently
from tests.engines.test_local import task_of

pytestmark = [pytest.mark.process, needs_ray, patiently]
PLACES = {
    1: ("n0:0", "n0:1", "n0:2", "n0:3"),
    2: ("n0:0", "n0:1", "n1:0", "n1:1"),
    4: ("n0:0", "n1:0", "n2:0", "n3:0"),
}


@pytest.fixture(scope="module")
def ground(shared, tmp_path_factory):
    """Four nodes, of which the first can hold a whole gang."""
    home, found = tmp_path_factory.mktemp("gangs"), shared.survey(4, 2, 2, 2)
    with contextlib.closing(RayEngine(found.cluster, nodes=found.nodes, home=home)) as engine:
        yield Ground(engine=engine, cluster=found.cluster, reference=write_program(home), home=home)


def learn(ground, technique, *, nodes):
    """The tensors of a task that four ranks have trained over so many nodes."""
    task = task_of(ground, "tower")
    member = dataclasses.replace(ground.member(task), directory=str(ground.home / f"{technique}-{nodes}"))
    knobs = {"nodes": nodes} if nodes > 1 else {}
    order = dataclasses.replace(ground.order(member), technique=technique, devices=PLACES[nodes], knobs=knobs)
    ground.engine.start(order)
    (end,) = ends_of(task, drain(ground.engine, order))
    assert end.kind == "finished", (end.reason, end.log)
    state, damages = checkpoint.recover(ground.home / f"{technique}-{nodes}")
    assert (state.step, damages) == (5, [])
    return dict(state.tensors)


@pytest.mark.parametrize(
    ("technique", "spread"),
    [
        pytest.param("replicate", (4,), marks=pytest.mark.slow),  # one over two nodes is cut in every run (test_ray)
        pytest.param("shard", (2,), marks=pytest.mark.slow),
        pytest.param("replicate", (2,), marks=pytest.mark.slow),
        pytest.param("pipeline", (2, 4), marks=pytest.mark.slow),
    ],
)
def test_four_ranks_learn_the_same_on_however_many_nodes(ground, technique, spread):
    alone = learn(ground, technique, nodes=1)
    assert alone
    for nodes in spread:
        found = learn(ground, technique, nodes=nodes)
        assert found.keys() == alone.keys()
        assert all(torch.equal(found[name], alone[name]) for name in alone)
