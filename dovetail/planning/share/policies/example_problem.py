"""A small problem for the policies' examples: three tasks of two families on a fast and two slow devices."""

from dovetail.planning.problem import Problem
from dovetail.vocabulary import Cluster, Device, Family, Kind, Member, Node, Option, TaskId


def example() -> Problem:
    """Tasks `a` and `b` run four times as fast on the fast device, task `c` only twice; two together pay a little.

    >>> [family.name for family in example().families]
    ['large', 'small']
    """
    rates = {("large", "fast"): 4.0, ("large", "slow"): 1.0, ("small", "fast"): 2.0, ("small", "slow"): 1.0}
    alone = tuple(
        Option(families=(family,), technique="resident", kind=kind, count=1, step_seconds=(1 / rate,))
        for (family, kind), rate in rates.items()
    )
    together = Option(
        families=("large", "small"), technique="interleave", kind="fast", count=1, step_seconds=(1 / 3.0, 1 / 1.0)
    )
    return Problem(
        cluster=Cluster(
            kinds=(
                Kind(name="fast", processor="cuda", price_per_hour=3.0),
                Kind(name="slow", processor="cuda", price_per_hour=0.5),
            ),
            nodes=(Node(name="n0", cores=8, memory_bytes=1 << 36),),
            devices=(
                Device(name="n0:0", kind="fast", node="n0", index=0),
                Device(name="n0:1", kind="slow", node="n0", index=1),
                Device(name="n0:2", kind="slow", node="n0", index=2),
            ),
        ),
        families=(
            Family(name="large", members=(_member("a", 3000, age_seconds=20.0), _member("b", 1000, age_seconds=10.0))),
            Family(name="small", members=(_member("c", 600, age_seconds=30.0),)),
        ),
        options=(*alone, together),
    )


def _member(task: str, steps: int, *, age_seconds: float) -> Member:
    return Member(task=TaskId(task), steps=steps, age_seconds=age_seconds)
