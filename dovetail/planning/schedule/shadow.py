"""What one more device of each kind would buy, by planning again with it."""

import dataclasses

from dovetail.planning.problem import Problem
from dovetail.planning.schedule.plan import plan
from dovetail.vocabulary import Cluster, Device, Objective, Plan

# For each kind: less than the plan itself has, because only the difference is shown.
_WORK = 2.0


def one_more(problem: Problem, made: Plan, *, work: float = _WORK) -> tuple[str, ...]:
    """A line for each kind of the cluster: what the objective would come to with one more device of it.

    The device is put on the node that has most of its kind, with a core of its own. What was planned is still possible
    then, so nothing is ever worse.

    >>> from dovetail.vocabulary import Family, Kind, Member, Option
    >>> option = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(1.0,), cores=1)
    >>> tasks = Family(name="f", members=tuple(Member(task=name, steps=10) for name in "abcd"))
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=1)
    >>> problem = Problem(cluster=cluster, families=(tasks,), options=(option,))
    >>> one_more(problem, plan(problem))
    ('one more cpu: makespan 20.0 s instead of 40.0 s (50.0% less)',)
    """
    before = _value(made)
    if before <= 0:
        return ()
    lines = []
    for kind, count in problem.cluster.counts():
        if count:
            larger = dataclasses.replace(problem, cluster=with_one_more(problem.cluster, kind.name))
            after = min(before, _value(plan(larger, work=work)))
            lines.append(f"one more {kind.name}: {_line(made, before, after)}")
    return tuple(lines)


def _value(made: Plan) -> float:
    assert made.schedule is not None
    return made.schedule.makespan_seconds if made.objective == "makespan" else made.value


def _line(made: Plan, before: float, after: float) -> str:
    objective = Objective.parse(made.objective)
    if before - after <= 1e-3 * before:
        return f"{objective.name} stays at {objective.show(before)}"
    less = f"({1 - after / before:.1%} less)"
    return f"{objective.name} {objective.show(after)} instead of {objective.show(before)} {less}"


def with_one_more(cluster: Cluster, kind: str) -> Cluster:
    """The cluster with one more device of a kind, on the node that has most of it, and a core for it.

    >>> from dovetail.vocabulary import Kind
    >>> [each.name for each in with_one_more(Cluster.uniform(Kind(name="cpu", processor="cpu")), "cpu").devices]
    ['n0:0', 'n0:1']
    """
    mine = [device.node for device in cluster.of_kind(kind)]
    node = max(dict.fromkeys(mine), key=mine.count)
    taken = {device.name for device in cluster.devices}
    index = 1 + max(device.index for device in cluster.devices if device.node == node)
    name = next(f"{node}:{n}" for n in range(index, index + len(taken) + 1) if f"{node}:{n}" not in taken)
    nodes = tuple(dataclasses.replace(n, cores=n.cores + 1) if n.name == node else n for n in cluster.nodes)
    more = Device(name=name, kind=kind, node=node, index=index)
    return dataclasses.replace(cluster, nodes=nodes, devices=(*cluster.devices, more))
