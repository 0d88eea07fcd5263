"""Pipelined options from a resident profile."""

import dataclasses
import itertools

import pytest

from dovetail.planning.pipeline.partition import Fabric
from dovetail.planning.techniques.base import Evidence
from dovetail.planning.techniques.pipeline import SPEC, Prediction, foreseen, predict
from dovetail.vocabulary import Cluster, InvalidRecord, Kind, Link, Option, Profile, Rejection
from tests.planning.pipeline.partition.graphs import layer

CPU, V100 = Kind(name="cpu", processor="cpu"), Kind(name="v100", processor="cuda", memory_bytes=16 << 30)
LAYERS = tuple(layer(name, 0.1, activation_bytes=1000, parameter_bytes=10**6) for name in "abcd")
PROFILE = Profile(
    family="f",
    kind="v100",
    count=1,
    step_seconds=8 * 0.4 + 0.8,
    peak_bytes=1 << 30,
    parameter_bytes=4 * 10**6,
    optimizer_bytes=8 * 10**6,
    layers=LAYERS,
    edges=(("a", "b"), ("b", "c"), ("c", "d")),
    accumulate=8,
)


def fabric(devices: int, kind: str = "v100", memory_bytes: int = 0) -> Fabric:
    return Fabric.uniform(sizes=(devices,), bytes_per_second=(1e9,), kind=kind, memory_bytes=memory_bytes)


def predicted(devices: int = 2, **asked: object) -> Prediction:
    found = predict(PROFILE, kind=V100, fabric=fabric(devices), **asked)
    assert isinstance(found, Prediction)
    return found


def test_a_step_is_work_bubble_and_updates() -> None:
    found = predicted(depth=2)
    # 8 microbatches of 0.4 s on two devices, one of them idle for half a microbatch at each end, half the updates.
    assert found.option.step_seconds[0] == pytest.approx(9 * 0.2 + 0.4, rel=1e-3)
    assert found.option.count == 2
    assert not found.option.measured
    assert found.option.knobs["stages"] == (("a", "b"), ("c", "d"))
    assert found.option.knobs["replicas"] == (1, 1)


def test_more_microbatches_and_split_backward_shorten_a_step_and_no_flush_most() -> None:
    plain = predicted(depth=2).option.step_seconds[0]
    halved = predicted(depth=2, microbatches=16).option.step_seconds[0]
    split = predicted(depth=2, timetable="zero_bubble").option.step_seconds[0]
    buffered = predicted(depth=2, timetable="2bw").option.step_seconds[0]
    assert buffered < split < plain
    assert buffered < halved < plain
    assert buffered == pytest.approx(8 * 0.2 + 0.4, rel=0.02)


def test_the_shortest_of_all_depths_is_taken_where_none_is_asked_for() -> None:
    best = predicted(4).option.step_seconds[0]
    assert best <= min(predicted(4, depth=depth).option.step_seconds[0] for depth in (1, 2, 3, 4)) + 1e-9


def test_what_does_not_fit_is_rejected_with_the_bytes() -> None:
    found = predict(PROFILE, kind=V100, fabric=fabric(2, memory_bytes=10**6))
    assert isinstance(found, Rejection)
    assert "bytes too few" in found.reason


def test_bytes_are_those_of_the_timetable() -> None:
    deep, buffered = (predicted(4, depth=4, timetable=name).partition for name in ("1f1b", "2bw"))
    assert [stage.in_flight for stage in deep.stages] == [4, 3, 2, 1]
    # Weights, gradients and two slots; with 2BW a version and a microbatch more.
    assert [stage.device_bytes for stage in deep.stages] == [4 * 10**6 + 1000 * held for held in (4, 3, 2, 1)]
    assert buffered.stages[0].device_bytes == 5 * 10**6 + 5000


def test_replicas_have_no_spare_microbatch_where_memory_is_short() -> None:
    hungry = dataclasses.replace(LAYERS[0], activation_bytes=10**7)
    profile = dataclasses.replace(PROFILE, layers=(hungry, *LAYERS[1:]))
    wide, tight = (
        predict(profile, kind=V100, fabric=fabric(3, memory_bytes=room), depth=2) for room in (1 << 30, 40 * 10**6)
    )
    assert isinstance(wide, Prediction)
    assert isinstance(tight, Prediction)
    assert [stage.replicas for stage in tight.partition.stages] == [1, 2]
    assert (wide.partition.stages[0].in_flight, tight.partition.stages[0].in_flight) == (4, 3)
    assert (wide.option.knobs.get("spare"), tight.option.knobs.get("spare")) == (None, 0)


def test_on_a_cpu_all_bytes_are_the_hosts() -> None:
    profile = dataclasses.replace(PROFILE, kind="cpu")
    found = predict(profile, kind=CPU, fabric=fabric(2, kind="cpu"), depth=2)
    assert isinstance(found, Prediction)
    assert (found.option.device_bytes, found.option.cores) == (0, 2)
    assert found.option.host_bytes == sum(stage.device_bytes for stage in found.partition.stages)


@pytest.mark.parametrize(
    ("asked", "words"),
    [({"timetable": "waltz"}, "one of"), ({"microbatches": 12}, "multiple of the 8"), ({"kind": CPU}, "one kind")],
)
def test_what_cannot_be_asked_for_is_refused(asked: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRecord, match=words):
        predict(PROFILE, **{"kind": V100, "fabric": fabric(2), **asked})


def wins(
    *, blocks: int, activation_bytes: int, accumulate: int, devices: int, rate: float, memory_bytes: int = 0
) -> Option:
    """The quickest pipeline that is offered of a row of equal blocks."""
    names = [f"b{number}" for number in range(blocks)]
    profile = dataclasses.replace(
        PROFILE,
        layers=tuple(layer(name, 0.03, activation_bytes=activation_bytes, parameter_bytes=1 << 26) for name in names),
        edges=tuple(itertools.pairwise(names)),
        accumulate=accumulate,
        step_seconds=0.03 * blocks * accumulate * 1.01,
        parameter_bytes=blocks << 26,
        optimizer_bytes=blocks << 27,
    )
    kind = dataclasses.replace(V100, memory_bytes=memory_bytes)
    cluster = Cluster.uniform(kind, devices_per_node=devices, memory_bytes=1 << 40, cores=64)
    links = (Link(source="v100", target="v100", bytes_per_second=rate),)
    evidence = Evidence(cluster=dataclasses.replace(cluster, links=links), profiles=(profile,))
    found = [each for each in SPEC.offers(evidence) if isinstance(each, Option) and each.count == devices]
    return min(found, key=lambda option: option.step_seconds)


def test_each_timetable_wins_somewhere() -> None:
    even = wins(blocks=24, activation_bytes=1 << 24, accumulate=8, devices=4, rate=150e9)
    chunked = wins(blocks=16, activation_bytes=1 << 20, accumulate=4, devices=4, rate=150e9)
    slow = wins(blocks=4, activation_bytes=1 << 26, accumulate=16, devices=2, rate=4e9)
    crossed = wins(blocks=4, activation_bytes=1 << 26, accumulate=8, devices=4, rate=4e9)
    assert [each.knobs["timetable"] for each in (even, chunked, slow)] == ["zero_bubble", "interleaved", "gpipe"]
    assert (chunked.knobs["chunks"], len(chunked.knobs["stages"])) == (4, 16)
    assert max(crossed.knobs["replicas"]) > 1  # fewer cuts to cross, each stage on several devices
    assert all(not each.knobs["recompute"] for each in (even, chunked, slow, crossed))


def test_activations_are_computed_again_only_where_memory_is_short() -> None:
    how = {"blocks": 8, "activation_bytes": 1 << 28, "accumulate": 8, "devices": 2, "rate": 150e9}
    roomy, tight = wins(**how), wins(**how, memory_bytes=2400 << 20)
    assert (roomy.knobs["recompute"], tight.knobs["recompute"]) == (False, True)
    assert tight.device_bytes <= 2400 << 20 < roomy.device_bytes
    assert roomy.step_seconds < tight.step_seconds


def test_chunks_are_counted_together_on_their_device() -> None:
    found = predicted(timetable="interleaved", chunks=2, depth=2)
    assert found.option.count == 2
    assert found.option.knobs["stages"] == (("a",), ("b",), ("c",), ("d",))
    assert (found.option.knobs["chunks"], found.option.knobs["replicas"]) == (2, (1, 1))
    # Two layers with weights, gradients and two slots, and the microbatches that wait at each.
    assert found.option.device_bytes == sum(stage.device_bytes for stage in found.partition.stages[::2])
    again = foreseen(PROFILE, found.option.knobs, fabric=fabric(2))
    assert again is not None
    assert again.seconds == pytest.approx(found.simulated.seconds)
