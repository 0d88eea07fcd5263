"""A hypothesis strategy for every record, read off its annotations."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from dovetail import vocabulary
from dovetail.vocabulary import OBJECTIVES, DovetailError

RECORDS = sorted(
    (
        cls
        for name in vocabulary.__all__
        if isinstance(cls := getattr(vocabulary, name), type) and dataclasses.is_dataclass(cls)
    ),
    key=lambda cls: cls.__name__,
)

floats = st.floats(allow_nan=False)
words = st.text(max_size=6)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | floats | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
SPECIAL = {
    ("Program", "reference"): st.sampled_from(["a.py:f", "package.module:f", "/deep/b.py:g", "pickle:x-1"]),
    ("Kind", "processor"): st.sampled_from(["cpu", "cuda"]),
    ("Workload", "objective"): st.sampled_from(list(OBJECTIVES.values())),
    ("Workload", "techniques"): st.sampled_from([(), ("resident", "spill"), ("-fuse",)]),
    ("Workload", "approximate"): st.sampled_from([None, "", "state-8bit"]),
    ("Workload", "allow"): st.sampled_from([(), ("state-8bit",), ("fp8", "weights-bf16")]),
    ("Workload", "keep"): st.dictionaries(st.sampled_from(["accuracy", "val_loss"]), st.floats(1e-6, 1.0)),
    ("Workload", "device_memory_bytes"): st.none() | st.integers(1, 1 << 40),
    ("Workload", "tasks"): st.deferred(lambda: st.lists(records(vocabulary.Task), min_size=1, max_size=3).map(tuple)),
    ("Entity", "inside"): st.sampled_from(["fairness", "first_come"]),
    ("Halving", "goal"): st.sampled_from(["min", "max"]),
    ("Halving", "first_steps"): st.integers(1, 1 << 40),
    ("Halving", "factor"): st.integers(2, 9),
    ("Population", "every_steps"): st.integers(1, 1000),
    ("Population", "replaced"): st.floats(0.01, 0.5),
    ("Population", "factors"): st.lists(st.floats(0.1, 10.0), min_size=1, max_size=3).map(tuple),
    ("Population", "resampled"): st.floats(0.0, 1.0),
    ("StageProfile", "worker"): st.sampled_from(["thread", "process"]),
    **{("StageProfile", f"{name}_seconds"): st.floats(0.0, 1e9) for name in ("service", "cpu", "lock")},
    ("StageProfile", "inputs"): st.floats(1e-9, 1e9),
    ("StagePlan", "worker"): st.sampled_from(["thread", "process"]),
    ("ShardSet", "order"): st.sampled_from(["any", "seeded"]),
    ("Task", "name"): st.text(alphabet="abc =.", min_size=1, max_size=6).map(lambda name: "t" + name),
}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """What a field with this annotation may hold."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return plain
    if origin in (types.UnionType, typing.Union):
        return st.one_of(*(st.none() if a is type(None) else values(a) for a in arguments))
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, arguments))
    if origin is Mapping:
        return st.dictionaries(words, values(arguments[1]), max_size=3)
    if dataclasses.is_dataclass(hint):
        return records(hint)
    # Counts are small and positive in most records; those that must be refuse the others.
    basic = getattr(hint, "__supertype__", hint)
    return {int: st.integers(0, 1 << 40), float: floats, str: words, bool: st.booleans()}[basic]


def records(cls: type) -> st.SearchStrategy[Any]:
    """Records of a class; what its own checks refuse is left out."""
    hints = typing.get_type_hints(cls)
    fields = {
        field.name: SPECIAL.get((cls.__name__, field.name), st.deferred(lambda h=hints[field.name]: values(h)))
        for field in dataclasses.fields(cls)
        if field.init
    }
    if cls is vocabulary.Stop:
        return stops()
    if cls is vocabulary.Cluster:
        return clusters()
    if cls is vocabulary.Objective:
        return st.sampled_from(list(OBJECTIVES.values())).map(vocabulary.Objective.parse)
    return (
        st.fixed_dictionaries(fields).map(lambda chosen: _made(cls, chosen)).filter(lambda record: record is not None)
    )


def _made(cls: type, chosen: dict[str, Any]) -> Any:
    if cls is vocabulary.Option:  # one figure for each family
        chosen["families"] = chosen["families"] or ("f",)
        chosen["step_seconds"] = tuple(0.5 + n for n, _ in enumerate(chosen["families"]))
    if cls is vocabulary.DataShard:  # in one place
        chosen |= {
            "name": chosen["name"] or "a",
            "url": "" if chosen["path"] else "u",
            "batches": chosen["batches"] + 1,
        }
    if cls is vocabulary.ShardSet:  # names of their own, all of them read in whole steps
        first = vocabulary.DataShard(name="a", path="/a", batches=chosen["accumulate"] or 1)
        named = enumerate(chosen["shards"])
        whole = [dataclasses.replace(each, name=f"s{n}", batches=first.batches) for n, each in named]
        chosen |= {"shards": (first, *whole), "accumulate": first.batches}
    if cls is vocabulary.Workload:  # names of their own, and figures of theirs
        chosen["tasks"] = tuple({task.name: task for task in chosen["tasks"]}.values())
        chosen["deadlines"] = {task.name: 9.5 for task in chosen["tasks"][: len(chosen["deadlines"])]}
        chosen["weights"] = {task.name: 2.0 for task in chosen["tasks"] if chosen["objective"] == "weighted"}
    try:
        return cls(**chosen)
    except DovetailError:
        return None


def stops() -> st.SearchStrategy[vocabulary.Stop]:
    """Stopping rules by steps or epochs, with and without a target."""
    counts = st.integers(1, 10**6)
    limit = counts.map(lambda n: {"steps": n}) | counts.map(lambda n: {"epochs": n})
    sides = st.sampled_from(["at_least", "at_most"])
    target = st.just({}) | st.builds(lambda metric, side, value: {"metric": metric, side: value}, words, sides, floats)
    return st.builds(lambda limit, target: vocabulary.Stop(**limit, **target), limit, target)


def clusters() -> st.SearchStrategy[vocabulary.Cluster]:
    """Equal nodes, with links."""
    links = st.lists(records(vocabulary.Link), max_size=2).map(tuple)
    sizes = st.integers(1, 3)
    return st.builds(
        lambda kind, nodes, devices, links: dataclasses.replace(
            vocabulary.Cluster.uniform(kind, nodes=nodes, devices_per_node=devices), links=links
        ),
        records(vocabulary.Kind),
        sizes,
        sizes,
        links,
    )
