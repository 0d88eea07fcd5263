"""Gangs over several nodes go where links are fast, and what they promise is what those links carry."""

import dataclasses
import itertools

import pytest

from dovetail.planning import Problem, check, derive_options, plan
from dovetail.planning.fitting import Width, misfit, widths
from dovetail.planning.room import Room, RoomForOptions
from dovetail.planning.techniques import pipeline, replicate
from dovetail.vocabulary import Cluster, Family, Kind, LayerProfile, Link, Member, Option, Profile, TaskId

GPU = Kind(name="h100", processor="cuda", memory_bytes=80 << 30, memory_bytes_per_second=3e12)
FAST, SLOW = 1e9, 1e8
LAYERS = tuple(
    LayerProfile(
        name=name,
        operation="Linear",
        forward_seconds=0.2,
        backward_seconds=0.4,
        parameter_bytes=50 << 20,
        activation_bytes=1 << 20,
    )
    for name in "abcd"
)
PROFILE = Profile(
    family="f",
    kind="h100",
    count=1,
    step_seconds=2.42,
    peak_bytes=4 << 30,
    parameter_bytes=200 << 20,
    optimizer_bytes=400 << 20,
    layers=LAYERS,
    edges=tuple(itertools.pairwise("abcd")),
)


def cluster(nodes=4, *, slow=(("n0", "n1"),), fast=FAST, devices=1):
    """Nodes of a device or more each, of which some pairs have a slow link."""
    found = Cluster.uniform(GPU, nodes=nodes, devices_per_node=devices)
    links = tuple(
        Link(
            source=source,
            target=target,
            bytes_per_second=SLOW if (source, target) in slow else fast,
            latency_seconds=1e-4,
            between_nodes=True,
        )
        for source, target in itertools.combinations([node.name for node in found.nodes], 2)
    )
    return dataclasses.replace(found, links=links)


def option(nodes, rate=0.0, *, seconds=1.0, technique="replicate"):
    return Option(
        families=("f",),
        technique=technique,
        kind="h100",
        count=nodes,
        step_seconds=(seconds,),
        knobs={"nodes": nodes},
        link_bytes_per_second=rate,
    )


def problem(where, options, *, tasks=1):
    members = tuple(Member(task=TaskId(f"t{number}"), steps=10) for number in range(tasks))
    return Problem(cluster=where, families=(Family(name="f", members=members),), options=tuple(options))


def offered(where, technique, **changes):
    profile = dataclasses.replace(PROFILE, **changes)
    found, _ = derive_options([profile], where, imagined={"h100"}, members={"f": 1})
    return [each for each in found if each.technique == technique]


def pairs_of(placement):
    return set(itertools.combinations(sorted({device.partition(":")[0] for device in placement.devices}), 2))


def test_widths_say_what_the_links_of_their_nodes_carry():
    found = [(width.count, width.nodes, width.link_bytes_per_second) for width in widths(cluster(), GPU)]
    assert found == [(2, 2, FAST), (2, 2, SLOW), (4, 4, SLOW)]
    three = [(width.nodes, width.link_bytes_per_second) for width in widths(cluster(3), GPU)]
    assert three == [(2, FAST), (2, SLOW), (3, SLOW)]
    assert [width.link_bytes_per_second for width in widths(Cluster.uniform(GPU, nodes=2), GPU)] == [0.0]


def test_links_that_are_nearly_as_fast_are_asked_for_together():
    where = cluster(3, slow=())
    links = tuple(
        dataclasses.replace(link, bytes_per_second=FAST * share)
        for link, share in zip(where.links, (1.0, 0.9, 0.86), strict=True)
    )
    (two, three) = widths(dataclasses.replace(where, links=links), GPU)
    assert two == Width(2, 2, 0.86 * FAST)
    assert three == Width(3, 3, 0.86 * FAST)


def test_a_gang_avoids_the_slow_link_and_promises_what_the_fast_one_carries():
    where = cluster()
    (two,) = [each for each in offered(where, "replicate") if each.nodes == 2]
    assert two.link_bytes_per_second == FAST, "over the slow one they are not worth it"
    rates = {
        rate: replicate.predict(PROFILE, kind=GPU, width=Width(2, 2, rate), bytes_per_second=rate)
        for rate in (FAST, SLOW)
    }
    assert two == rates[FAST]
    assert rates[SLOW].step_seconds[0] - two.step_seconds[0] == pytest.approx((200 << 20) * (1 / SLOW - 1 / FAST))
    made = plan(problem(where, [two])).schedule
    check(made, where)
    (placement,) = made.placements
    assert pairs_of(placement).isdisjoint({("n0", "n1")})


def test_a_pipeline_s_stages_lie_on_nodes_that_are_linked_well():
    where = cluster(3)
    found = offered(where, "pipeline", accumulate=8, step_seconds=8 * 2.4 + 0.02)
    two = [each for each in found if each.nodes == 2]
    assert two
    assert {each.link_bytes_per_second for each in two} <= {FAST, SLOW}
    assert two[0].link_bytes_per_second == FAST
    made = plan(problem(where, two)).schedule
    check(made, where)
    assert pairs_of(made.placements[0]).isdisjoint({("n0", "n1")})


def test_a_pipeline_is_predicted_with_the_links_of_the_nodes_that_it_is_for():
    layers = tuple(dataclasses.replace(layer, activation_bytes=200 << 20) for layer in LAYERS)
    profile = dataclasses.replace(PROFILE, layers=layers, accumulate=8, step_seconds=8 * 2.4 + 0.02)
    fabrics = [pipeline._neighbours(cluster(3), GPU, Width(2, 2, rate)) for rate in (FAST, SLOW)]
    assert [[place.name for place in fabric.places] for fabric in fabrics] == [["n0:0", "n2:0"], ["n0:0", "n1:0"]]
    fast, slow = (pipeline.predict(profile, kind=GPU, fabric=fabric, depth=2) for fabric in fabrics)
    # Eight microbatches of 200 MiB, there and back, at a tenth of the rate.
    assert slow.option.step_seconds[0] >= 8 * 2 * (200 << 20) / SLOW > 2 * fast.option.step_seconds[0]


def test_a_pipeline_over_nodes_has_as_many_ranks_on_each():
    fabric = pipeline._neighbours(cluster(3), GPU, Width(3, 3, FAST))
    profile = dataclasses.replace(PROFILE, accumulate=8, step_seconds=8 * 2.4 + 0.02)
    assert pipeline.predict(profile, kind=GPU, fabric=fabric, depth=2, width=1).option.nodes == 2
    wide = pipeline._neighbours(cluster(2, devices=2), GPU, Width(4, 2, FAST))
    made = pipeline.predict(profile, kind=GPU, fabric=wide, depth=3, width=1)
    assert "as many ranks must be on each node" in made.reason


def test_two_gangs_take_both_pairs_that_are_linked_well():
    apart = (("n0", "n1"), ("n0", "n3"), ("n1", "n2"), ("n2", "n3"))
    where = cluster(slow=apart)  # n0 with n2, and n1 with n3, are fast
    made = plan(problem(where, [option(2, FAST)], tasks=2)).schedule
    check(made, where)
    assert {frozenset(pairs_of(each)) for each in made.placements} == {
        frozenset({("n0", "n2")}),
        frozenset({("n1", "n3")}),
    }
    assert made.makespan_seconds == 10


def test_a_gang_waits_for_fast_links_where_that_ends_sooner_and_takes_slow_ones_where_not():
    where = cluster(slow=(("n0", "n1"), ("n0", "n2"), ("n0", "n3"), ("n1", "n2"), ("n1", "n3")))
    for seconds, makespan in ((1.5, 15), (3.0, 20)):
        made = plan(problem(where, [option(2, FAST), option(2, SLOW, seconds=seconds)], tasks=2)).schedule
        check(made, where)
        assert made.makespan_seconds == makespan


def test_gangs_share_no_port_beyond_what_it_carries():
    where = cluster(2, slow=(), devices=2)
    room = Room(where)
    both = dataclasses.replace(option(2, FAST / 2), count=2)
    whole = dataclasses.replace(option(2, FAST), count=2)
    first = room.take(both, nodes=room.fullest(both))
    assert room.fullest(whole) is None
    assert room.fullest(both) == (0, 1)
    room.give(both, first)
    assert room.fullest(whole) == (0, 1)
    assert not room.fits(dataclasses.replace(whole, link_bytes_per_second=2 * FAST), (0, 2))


def test_an_option_that_waits_for_links_is_asked_for_again_once_they_are_free():
    where = cluster(3, slow=(("n0", "n1"), ("n0", "n2")))
    linked = option(2, FAST)
    room = RoomForOptions(where, options=[linked, option(2)])
    devices = room.take(0, nodes=room.find(0))
    assert devices == (1, 2)
    assert room.find(0) is None
    assert room.give(linked, devices=devices) == [0]
    assert room.find(0) == (1, 2)


def test_trials_are_on_the_free_nodes_that_are_linked_best():
    room = Room(cluster(3, slow=(("n0", "n1"), ("n0", "n2"))))
    assert room.free_together("h100", 2, 2) == (1, 2)
    room.occupy(None, (2,))
    assert room.free_together("h100", 2, 2) == (0, 1)


def test_what_was_measured_over_nodes_stays_on_such_as_it_was_measured_on():
    measured = dataclasses.replace(
        PROFILE, technique="replicate", count=2, step_seconds=1.4, knobs={"nodes": 2}, layers=(), edges=()
    )
    found, _ = derive_options([PROFILE, measured], cluster())
    (over,) = [each for each in found if each.nodes == 2]
    assert over.measured
    assert over.link_bytes_per_second == FAST


def test_what_needs_faster_links_than_there_are_is_absent_with_a_reason():
    assert misfit(option(2, FAST), cluster()) is None
    assert misfit(option(4, FAST), cluster()).reason == (
        "needs links of 953.7 MiB a second between 4 nodes; those that could hold it have 95.4 MiB. "
        "Add nodes with faster links."
    )
