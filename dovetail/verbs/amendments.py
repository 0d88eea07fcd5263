"""A workload and a cluster as a verb is told to take them: what its caller says besides counts more than what they say
themselves."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from dovetail.planning.options.kinds import SHEETS, with_prices
from dovetail.planning.techniques import techniques as known_techniques
from dovetail.verbs.choices import check_name
from dovetail.vocabulary import (
    Cluster,
    DovetailError,
    InvalidWorkload,
    Objective,
    Workload,
    parse_allow,
    parse_device_memory,
    parse_techniques,
)


def amend(
    workload: Workload,
    *,
    objective: str | None = None,
    weights: Mapping[str, float] | None = None,
    deadlines: Mapping[str, float] | None = None,
    techniques: str | Iterable[str] | None = None,
    device_memory: str | int | None = None,
    allow: str | Iterable[str] | None = None,
    keep: Mapping[str, float] | None = None,
) -> Workload:
    """The workload with a name, and with what is said of the whole. Weights and deadlines are added to its own; weights
    of its own that another objective has no use for are left out.

    >>> from dovetail.describe import grid
    >>> workload = grid("dovetail.testing.programs:dropout", seed=[0], steps=9)
    >>> amended = amend(workload, objective="mean", techniques="-fuse", device_memory="24 GiB")
    >>> amended.name, amended.objective, amended.techniques
    ('dropout', 'mean', ('-fuse',))
    """
    if not isinstance(workload, Workload):
        raise InvalidWorkload(
            f"a workload must have its tasks; a {type(workload).__name__} has not. Only dt.run and 'dovetail run' take "
            f"a search, whose tasks come as results do."
        )
    changes: dict[str, Any] = {}
    if not workload.name:
        changes["name"] = workload.tasks[0].program.function
    if objective is not None:
        changes["objective"] = objective
        if not objective.strip().startswith("weighted"):
            changes["weights"] = {}
    if weights:
        changes["weights"] = {**workload.weights, **weights}
    if deadlines:
        changes["deadlines"] = {**workload.deadlines, **deadlines}
    if techniques is not None:
        changes["techniques"] = parse_techniques(techniques)
    if device_memory is not None:
        changes["device_memory_bytes"] = parse_device_memory(device_memory)
    if allow is not None:
        changes["allow"] = parse_allow(allow)
    if keep:
        changes["keep"] = keep
    return check_techniques(dataclasses.replace(workload, **changes) if changes else workload)


def price_cluster(cluster: Cluster, prices: Mapping[str, float], workload: Workload) -> Cluster:
    """The cluster with its prices; refused where the workload's objective needs one that is not known."""
    priced = with_prices(cluster, prices)
    missing = [kind.name for kind, count in priced.counts() if count and not kind.price_per_hour > 0]
    if Objective.parse(workload.objective).name == "spend" and missing:
        raise DovetailError(
            f"objective {workload.objective!r} must have a price for each kind of the cluster, found none for "
            f"{missing[0]!r}. Give --price {missing[0]}=1.50, in Python prices={{{missing[0]!r}: 1.50}}."
        )
    return priced


def limit_cluster(cluster: Cluster, workload: Workload) -> Cluster:
    """The cluster with no more device memory than the workload is to use."""
    limit = workload.device_memory_bytes
    return cluster if limit is None else cluster.limit_memory(limit)


def is_elsewhere(cluster: Cluster, here: Cluster) -> bool:
    """Whether a cluster has accelerators that are not here."""
    there, at_hand = (
        {kind.name.rpartition("-")[0] if kind.limited else kind.name for kind in each.kinds} for each in (cluster, here)
    )
    return any(name in SHEETS for name in there - at_hand)


def check_techniques(workload: Workload) -> Workload:
    """The same workload, where all techniques that it speaks of are there.

    >>> from dovetail.describe import grid
    >>> check_techniques(grid("dovetail.testing.programs:dropout", seed=[0], steps=9, techniques="resident")).techniques
    ('resident',)
    """
    for name in workload.techniques:
        check_name("a technique (--techniques, techniques=)", name.removeprefix("-"), known_techniques())
    return workload
