"""How many tasks of a search keep the devices busy. Pure."""

from collections.abc import Iterable

from dovetail.vocabulary import Cluster, Option


def tasks_at_once(options: Iterable[Option], cluster: Cluster, *, most: int) -> int:
    """So many that each device has a task, or a gang of them where the options that were measured say that gangs get
    through more; with gangs `most` at a time, since what is asked for together learns nothing from one another.

    >>> from dovetail.vocabulary import Kind
    >>> cluster = Cluster.uniform(Kind(name="h200", processor="cuda"), devices_per_node=2)
    >>> alone = Option(families=("f",), technique="resident", kind="h200", count=1, step_seconds=(1.0,))
    >>> gang = Option(families=("f",) * 4, technique="fuse", kind="h200", count=1, step_seconds=(1.1,) * 4)
    >>> [tasks_at_once(some, cluster, most=most) for some, most in [([], 9), ([alone], 9), ([alone, gang], 9)]]
    [2, 2, 8]
    >>> tasks_at_once([alone, gang], cluster, most=4)
    2
    """
    options, found = tuple(options), 0
    for kind, count in cluster.counts():
        mine = [option for option in options if option.kind == kind.name and option.count <= count]
        able = [option for option in mine if _tasks(option, count) <= max(most, count)]
        found += _tasks(max(able, key=_rate), count) if able else count
    return max(1, found)


def _tasks(option: Option, devices: int) -> int:
    return len(option.families) * (devices // option.count)


def _rate(option: Option) -> float:
    """Steps a second of all members together, for each device."""
    return sum(1.0 / seconds for seconds in option.step_seconds) / option.count
