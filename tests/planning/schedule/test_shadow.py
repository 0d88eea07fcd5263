"""What one more device would buy: never less than nothing, and told for each kind."""

import dataclasses

from dovetail.planning import Problem
from dovetail.planning.schedule.plan import plan
from dovetail.planning.schedule.shadow import one_more
from dovetail.vocabulary import Cluster, Device, Kind, Node

from ..problems import CPU, family, option


def test_each_kind_has_its_line_and_what_nobody_can_use_buys_nothing() -> None:
    kinds = (Kind(name="fast", processor="cuda"), Kind(name="idle", processor="cuda"))
    devices = tuple(Device(name=f"n0:{n}", kind=kind.name, node="n0", index=n) for n, kind in enumerate(kinds))
    cluster = Cluster(kinds=kinds, nodes=(Node(name="n0", cores=8, memory_bytes=8),), devices=devices)
    problem = Problem(cluster=cluster, families=(family(a=10, b=10),), options=(option(kind="fast"),))
    assert one_more(problem, plan(problem)) == (
        "one more fast: makespan 10.0 s instead of 20.0 s (50.0% less)",
        "one more idle: makespan stays at 20.0 s",
    )


def test_money_and_means_are_told_as_such() -> None:
    cheap = dataclasses.replace(CPU, price_per_hour=2.0)
    problem = Problem(
        cluster=Cluster.uniform(cheap), families=(family(a=1800, b=1800),), options=(option(),), objective="mean"
    )
    assert one_more(problem, plan(problem)) == ("one more cpu: mean 30 min 0 s instead of 45 min 0 s (33.3% less)",)
    spend = dataclasses.replace(problem, objective="spend:deadline=2h")
    assert one_more(spend, plan(spend)) == ("one more cpu: spend stays at 2.00",)


def test_nothing_to_do_needs_nothing_more() -> None:
    problem = Problem(cluster=Cluster.uniform(CPU), families=(), options=())
    assert one_more(problem, plan(problem)) == ()
