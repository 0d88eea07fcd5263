"""Rounds under a policy, in the loop, on the simulated engine."""

import dataclasses
import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.control import Controller
from dovetail.control.deciding.sharing import Sharing
from dovetail.control.simulation.outcome import Outcome
from dovetail.control.simulation.simulating import simulate
from dovetail.control.simulation.workloads import draw
from dovetail.describe.streams import Stream
from dovetail.describe.traces import Arrival, read_rates, read_trace
from dovetail.engines import Outage
from dovetail.planning.options.kinds import parse_cluster
from dovetail.planning.share.policies import POLICIES
from dovetail.vocabulary import Cluster, Device, InvalidWorkload, Kind, Node, NoFeasiblePlan, Option

GAVEL = Path(__file__).parents[4] / "shared" / "data" / "gavel"
KIND = Kind(name="v100", processor="cuda")
FAIR = POLICIES["max_min_fairness"]


def option(family: str = "f", *, kind: str = "v100", count: int = 1, seconds: float = 1.0) -> Option:
    return Option(families=(family,), technique="resident", kind=kind, count=count, step_seconds=(seconds,))


def arrival(name: str, *, steps: int = 720, at: float = 0.0, family: str = "f", **more: float) -> Arrival:
    return Arrival(task=name, family=family, steps=steps, at_seconds=at, **more)


def run(*arrivals: Arrival, devices: int = 1, options: tuple[Option, ...] = (option(),), **how: object) -> Outcome:
    cluster = Cluster.uniform(KIND, devices_per_node=devices)
    settled: dict[str, object] = {"policy": FAIR, "checked": True, **how}
    return simulate(arrivals, options=options, cluster=cluster, **settled)  # type: ignore[arg-type]


def short(stream: Stream) -> Stream:
    """The same, with a fiftieth of the steps."""
    arrivals = tuple(dataclasses.replace(each, steps=max(1, each.steps // 50)) for each in stream.arrivals)
    return dataclasses.replace(stream, arrivals=arrivals)


def test_two_tasks_on_one_device_take_turns_of_a_round() -> None:
    found = run(arrival("a", steps=1440), arrival("b", steps=1440))
    assert found.makespan_seconds == 2880.0
    assert min(found.seconds.values()) > 1440.0  # nobody ran through
    assert found.starts >= 4


def test_who_has_its_devices_to_itself_goes_on_without_leaving_them() -> None:
    found = run(arrival("a", steps=100_000), arrival("b", steps=50_000), devices=2)
    assert found.starts == 2
    assert found.seconds == {"a": 100_000.0, "b": 50_000.0}


def test_arrivals_are_seen_at_the_next_round() -> None:
    found = run(arrival("a", at=10.0, steps=100))
    assert found.seconds["a"] == pytest.approx(450.0)


def test_devices_that_fall_free_are_given_away_at_the_next_round() -> None:
    found = run(arrival("a", steps=100), arrival("b", steps=100), policy=POLICIES["first_come"])
    assert sorted(found.seconds.values()) == pytest.approx([100.0, 460.0])


@pytest.mark.parametrize("policy", ["first_come", "max_min_fairness"])
def test_of_tasks_that_come_at_once_the_first_of_the_trace_goes_first(policy: str) -> None:
    trace = [arrival(name, steps=300, family=family) for name, family in (("z", "f"), ("b", "g"), ("a", "f"))]
    found = run(*trace, options=(option("f"), option("g")), policy=POLICIES[policy])
    ends = sorted(found.seconds, key=found.seconds.__getitem__)
    assert ends == ["z", "b", "a"] if policy == "first_come" else ends.index("z") < ends.index("a")


def test_saving_and_loading_take_their_time() -> None:
    """One that runs alone loads once; of two that alternate each turn costs a load, and a save of the other."""
    assert run(arrival("a"), load_seconds=30.0, save_seconds=10.0).seconds["a"] == 750.0
    found = run(arrival("a", steps=1440), arrival("b", steps=1440), load_seconds=30.0, save_seconds=10.0)
    held = found.busy * found.makespan_seconds
    assert found.starts >= 4
    assert held == pytest.approx(2 * 1440 + 30.0 * found.starts + 10.0 * (found.starts - 2))


def test_weights_are_kept() -> None:
    found = run(arrival("light", steps=7200), arrival("heavy", steps=7200, weight=3.0))
    # With three quarters of the time the heavy one needs 4/3 of its 7,200 s, give or take a round.
    assert found.seconds["heavy"] == pytest.approx(9600.0, abs=720.0)
    assert found.seconds["light"] == pytest.approx(14400.0, abs=1.0)


def test_members_of_a_gang_end_on_their_own() -> None:
    pair = Option(families=("f", "f"), technique="interleave", kind="v100", count=1, step_seconds=(1.1, 1.1))
    found = run(arrival("a", steps=300), arrival("b", steps=3000), options=(option(), pair))
    assert found.seconds["a"] == pytest.approx(330.0)
    # In the first round both run, then what is left runs alone at full speed.
    assert found.seconds["b"] == pytest.approx(360.0 + (3000 - 360 / 1.1))


def test_a_member_that_ended_is_news_once() -> None:
    """The gang that it leaves behind is told to go at the next round, which is no reason for another allocation."""
    pair = Option(families=("f", "f"), technique="interleave", kind="v100", count=1, step_seconds=(1.1, 1.1))
    found = run(arrival("a", steps=300), arrival("b", steps=3000), options=(option(), pair))
    assert found.allocations == 2  # at the beginning, and once a has ended


def test_a_node_that_breaks_takes_what_was_not_saved() -> None:
    outage = Outage(devices=("n0:0",), at_seconds=100.0, back_seconds=400.0)
    found = run(arrival("a", steps=1000), outages=[outage])
    # 90 of the 100 s were saved; the device is back at 400 s and given away at 720 s.
    assert found.seconds["a"] == pytest.approx(720.0 + 1000 - 90)
    assert found.lost == 1


def test_others_go_on_while_a_node_is_gone() -> None:
    cluster = Cluster.uniform(KIND, nodes=2, devices_per_node=1)
    outage = Outage(devices=("n1:0",), at_seconds=100.0)
    two = [arrival("a", steps=1000), arrival("b", steps=1000)]
    found = simulate(two, options=[option()], cluster=cluster, policy=FAIR, outages=[outage], checked=True)
    assert found.lost == 1
    assert found.makespan_seconds == pytest.approx(1910.0, abs=360.0)


def test_deadlines_that_were_missed_are_named() -> None:
    found = run(arrival("a", deadline_seconds=700.0), arrival("b", steps=100, deadline_seconds=5000.0))
    assert found.missed == ("a",)


def test_series_say_when_devices_were_used_and_how_fairly() -> None:
    found = run(arrival("a", steps=7200), arrival("b", steps=7200))
    assert all(share == pytest.approx(1.0) for _, share in found.utilisation)
    assert found.busy == pytest.approx(1.0)
    assert all(0 <= index <= 1 + 1e-9 for _, index in found.fairness)


def test_blind_policies_do_no_better() -> None:
    stream = short(draw(40, per_hour=300.0, kinds=["v100", "k80"], seed=3))
    cluster = parse_cluster("4xv100+8xk80")
    aware, blind = (
        simulate(stream.arrivals, options=stream.options, cluster=cluster, policy=FAIR, blind=each).mean_hours
        for each in (False, True)
    )
    assert aware < blind


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_carries_a_stream_to_its_end(policy: str) -> None:
    prices = {"v100": 3.0, "k80": 0.9}
    cluster = parse_cluster("2xv100+3xk80")
    kinds = tuple(dataclasses.replace(kind, price_per_hour=prices[kind.name]) for kind in cluster.kinds)
    stream = short(draw(12, per_hour=30.0, kinds=["v100", "k80"], seed=1))
    found = simulate(
        stream.arrivals,
        options=stream.options,
        cluster=dataclasses.replace(cluster, kinds=kinds),
        policy=POLICIES[policy],
        checked=True,
    )
    assert len(found.seconds) == 12


@given(
    st.lists(
        st.tuples(st.integers(1, 5000), st.floats(0, 5000), st.sampled_from("fgh"), st.sampled_from((1.0, 2.0))),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from((0.0, 25.0)),
)
@settings(deadline=None, max_examples=30)
def test_every_stream_ends_and_no_task_is_faster_than_its_best(
    drawn: list[tuple[int, float, str, float]], devices: int, wide: bool, charged: float
) -> None:
    options = (option("f"), option("g", seconds=0.3), option("h", count=2 if wide and devices > 1 else 1))
    best = {each.families[0]: each.step_seconds[0] for each in options}
    arrivals = [
        arrival(f"t{n}", steps=steps, at=at, family=family, weight=weight)
        for n, (steps, at, family, weight) in enumerate(drawn)
    ]
    found = run(*arrivals, devices=devices, options=options, load_seconds=charged)
    assert found.seconds.keys() == {each.task for each in arrivals}
    for each in arrivals:
        least = each.steps * best[each.family] * (1 - 1e-9) + charged
        assert found.seconds[each.task] >= least - 1e-6  # what is due within a microsecond is due now


def assert_nobody_is_in_two_places(controller: Controller) -> None:
    held: dict[str, list[tuple[float, float]]] = {}
    for task, one in controller.progress.items():
        for span in one.spans:
            for what in (task, *span.devices):
                held.setdefault(what, []).append((span.start_seconds, span.end_seconds or math.inf))
    for spans in held.values():
        spans.sort()
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


@pytest.mark.parametrize("charged", [0.0, 20.0, 500.0])
def test_no_task_and_no_device_is_in_two_placements_at_once(charged: float) -> None:
    """Also where saving takes longer than a round, and with nodes that break in the middle of it."""
    stream = short(draw(25, per_hour=300.0, kinds=["v100", "k80"], several=True, seed=7))
    cluster = parse_cluster("8xv100+8xk80+2x1xk80")
    broken = [Outage(devices=("n2:0",), at_seconds=at, back_seconds=at + 1000.0) for at in (1000.0, 4500.0)]
    seen: list[Controller] = []
    simulate(
        stream.arrivals,
        options=stream.options,
        cluster=cluster,
        policy=FAIR,
        load_seconds=charged / 2,
        save_seconds=charged,
        outages=broken,
        checked=True,
        observe=lambda controller: seen.append(controller) if not seen else None,
    )
    assert_nobody_is_in_two_places(seen[0])
    assert all(one.status == "finished" for one in seen[0].progress.values())


def test_the_same_stream_comes_to_the_same() -> None:
    stream = short(draw(30, per_hour=300.0, kinds=["v100", "k80"], several=True, seed=5))
    cluster = parse_cluster("8xv100+8xk80")
    one, other = (
        simulate(stream.arrivals, options=stream.options, cluster=cluster, policy=FAIR).seconds for _ in range(2)
    )
    assert one == other


def test_tasks_whose_devices_are_gone_for_good_are_named() -> None:
    cluster = parse_cluster("1xv100+1xk80")
    options = [option("f"), option("g", kind="k80")]
    outage = Outage(devices=("n1:0",), at_seconds=100.0)
    two = [arrival("a", steps=1000), arrival("b", steps=1000, family="g")]
    with pytest.raises(NoFeasiblePlan, match="'b' is left when the last ones that fit broke for good"):
        simulate(two, options=options, cluster=cluster, policy=FAIR, outages=[outage])


# Bad input


def test_a_task_that_fits_nowhere_is_named() -> None:
    with pytest.raises(NoFeasiblePlan, match="'b' is without: of family 'g'"):
        run(arrival("a"), arrival("b", family="g"))
    with pytest.raises(NoFeasiblePlan, match="'wide' is without"):
        run(arrival("wide", family="w"), options=(option("w", count=2),))


def test_two_tasks_with_one_name() -> None:
    with pytest.raises(InvalidWorkload, match="'a' is there more than once"):
        run(arrival("a"), arrival("a", steps=9))


def test_a_deadline_already_past() -> None:
    with pytest.raises(InvalidWorkload, match="that of 'a' is past already"):
        run(arrival("a", deadline_seconds=0.0))


def test_no_tasks_at_all() -> None:
    with pytest.raises(InvalidWorkload, match="at least one task"):
        run()


@pytest.mark.parametrize("at", [-1.0, math.inf, math.nan])
def test_times_that_cannot_be(at: float) -> None:
    with pytest.raises(InvalidWorkload, match="'a' is not so"):
        run(arrival("a", at=at))


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_rounds_that_cannot_be(seconds: float) -> None:
    with pytest.raises(InvalidWorkload, match="a round must last longer than 0 s"):
        Sharing(policy=FAIR, round_seconds=seconds)


# Against what was published


@pytest.mark.skipif(not GAVEL.exists(), reason="../shared/data is not there")
def test_the_first_tasks_of_a_published_trace_fare_better_than_with_kinds_unseen() -> None:
    rates = read_rates(GAVEL / "physical_cluster_throughputs.json")
    trace = read_trace(GAVEL / "traces" / "physical_cluster" / "max_min_fairness.trace", rates=rates)
    cluster = parse_cluster("8x1xv100+16x1xp100+24x1xk80")
    alone = rates.options(("v100", "p100", "k80"))
    first = [each for each in itertools.islice(trace, 24) if each.family.endswith("x1")]
    aware, blind = (
        simulate(first, options=alone, cluster=cluster, policy=FAIR, blind=each, checked=True) for each in (False, True)
    )
    assert aware.mean_hours <= blind.mean_hours


def test_a_family_that_only_a_broken_node_holds_is_counted_again_when_it_is_back() -> None:
    devices = tuple(Device(name=f"n{n}:{i}", kind="v100", node=f"n{n}", index=i) for n, i in ((0, 0), (0, 1), (1, 0)))
    nodes = tuple(Node(name=name, memory_bytes=1 << 40, cores=64) for name in ("n0", "n1"))
    found = simulate(
        [
            arrival("a", steps=9000, family="wide"),
            *(arrival(n, steps=9000, at=a) for n, a in (("b", 0.0), ("c", 4000.0))),
        ],
        options=[option("wide", count=2), option()],
        cluster=Cluster(kinds=(KIND,), nodes=nodes, devices=devices),
        policy=POLICIES["finish_time_fairness"],
        least_seconds_between=7200.0,
        outages=[Outage(devices=("n0:0", "n0:1"), at_seconds=1000.0, back_seconds=3000.0)],
    )
    assert found.seconds.keys() == {"a", "b", "c"}
