"""Tasks that hop between the nodes of a Ray cluster, on which they are evaluated, too."""

import functools

import pytest

from dovetail.engines.ray import RayEngine
from tests.control.hop_program import STEPS, write_shards
from tests.control.test_hopped import check_evaluated, run
from tests.engines.ray.ray_clusters import needs_ray, patiently

pytestmark = [pytest.mark.process, pytest.mark.slow, needs_ray, patiently]


@pytest.mark.parametrize("every", [sum(STEPS.values()), 4])
def test_evaluation_hops_to_its_own_shards_and_gives_what_one_device_gives_to_the_bit(shared, tmp_path, every):
    """At the ends of epochs, where the planner chooses the order, and within visits; through a stop."""
    ray = shared.survey(1, 1)
    on = ray.cluster, functools.partial(RayEngine, nodes=ray.nodes)
    data, home, stopped = tmp_path / "data", tmp_path / "store", []
    data.mkdir()
    write_shards(data)

    def stop(events):
        if not stopped and any(event.kind == "shard_evaluated" for event in events):
            stopped.append(True)

    def observe(found):
        if stopped and not found.stopping:
            found.post("stop", reason="half way")

    fields = {"asked": True, "every": every}
    run(data, home, "any", observe=observe, hear=stop, on=on, **fields)
    assert stopped
    found, events = run(data, home, "any", on=on, **fields)
    check_evaluated(data, home, found, events, every=every)
