"""Depth, width, microbatch and recomputation for models of repeated blocks."""

import dataclasses

import pytest

from dovetail.planning.pipeline.partition import Fabric, Graph, Terms, best_shape
from dovetail.vocabulary import InvalidRecord, NoFeasiblePlan
from tests.planning.pipeline.partition.graphs import chain, layer

MODEL = chain(
    layer("embedding", 0.5, activation_bytes=100, parameter_bytes=3000),
    *(layer(f"block{n}", 1.0, activation_bytes=100, parameter_bytes=1000) for n in range(8)),
    layer("head", 2.0, activation_bytes=10, parameter_bytes=3000),
)


def sized(*microbatches: int) -> dict[int, Graph]:
    return {size: MODEL.scaled(size) for size in microbatches}


def fabric(devices: int = 4, memory_bytes: int = 0, rate: float = 1e9) -> Fabric:
    return Fabric.uniform(sizes=(devices,), bytes_per_second=(rate,), memory_bytes=memory_bytes)


def test_replicas_alone_where_everything_fits() -> None:
    shape = best_shape(sized(1, 2), fabric(), batch=16)
    assert (shape.depth, shape.width, shape.microbatch, shape.recompute) == (1, 4, 2, False)
    assert shape.step_seconds == pytest.approx(16 * MODEL.seconds / 4, rel=1e-3)


def test_a_deeper_pipeline_where_memory_is_short() -> None:
    shape = best_shape(sized(1, 2), fabric(memory_bytes=40_000), batch=16)
    assert shape.depth > 1
    assert not shape.recompute
    assert all(stage.device_bytes <= 40_000 for stage in shape.partition.stages)


def test_recomputation_where_it_is_worth_its_time() -> None:
    hungry = chain(*(layer(name, activation_bytes=1000, parameter_bytes=1) for name in "abcd"))
    # Two layers on each device, two microbatches in flight on the first: 4,000 bytes; 2,000 if computed again.
    roomy, tight = (best_shape({1: hungry}, fabric(2, memory_bytes=room), batch=8) for room in (4100, 3500))
    assert (roomy.depth, roomy.width, roomy.recompute) == (1, 2, False)
    assert (tight.depth, tight.width, tight.recompute) == (2, 1, True)
    assert tight.step_seconds == pytest.approx(8 * 2 * 4 / 3)


def test_stages_are_uneven_where_layers_are() -> None:
    shape = best_shape(sized(1), fabric(memory_bytes=22_000), batch=16)
    assert shape.depth == 4
    assert len({len(stage.layers) for stage in shape.partition.stages}) > 1


def test_every_shape_tried_by_hand_is_no_better() -> None:
    from dovetail.planning.pipeline.partition import partition

    memory, batch = 30_000, 16
    best = best_shape(sized(1, 2, 4), fabric(memory_bytes=memory), batch=batch)
    for size, graph in sized(1, 2, 4).items():
        for depth, width, recompute in ((d, w, r) for d in range(1, 5) for w in range(1, 4 // d + 1) for r in (0, 1)):
            count = batch // size
            if count % width or count // width < depth:
                continue
            terms = Terms(weights="double_buffered", microbatches=count, recompute=bool(recompute))
            try:
                made = partition(graph, fabric(memory_bytes=memory), terms=terms, depth=depth, width=width)
            except NoFeasiblePlan:
                continue
            assert best.step_seconds <= count * made.seconds * (1 + 1e-9)


def test_a_flush_makes_shallow_pipelines_better() -> None:
    few = Terms(weights="flush", microbatches=1)
    slow = fabric(rate=1000.0)
    assert best_shape(sized(8), slow, batch=16, terms=few).depth < best_shape(sized(1), slow, batch=64, terms=few).depth


def test_a_microbatch_must_divide_the_batch() -> None:
    with pytest.raises(InvalidRecord, match=r"divide the batch of 16; none of \[3, 5\] does"):
        best_shape(sized(3, 5), fabric(), batch=16)


def test_what_fits_in_no_shape_is_refused_with_the_bytes() -> None:
    with pytest.raises(NoFeasiblePlan, match="bytes too few"):
        best_shape(sized(1), fabric(memory_bytes=9_000), batch=16)


def test_2bw_needs_a_microbatch_for_each_stage() -> None:
    only_deep = dataclasses.replace(MODEL)
    with pytest.raises(NoFeasiblePlan, match="microbatches"):
        best_shape({16: only_deep}, fabric(memory_bytes=22_000), batch=16)
