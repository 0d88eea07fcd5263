"""Pairs predicted from a few that were measured: which are offered, how far off they are said to be, what to try."""

import dataclasses
import math
import random

import numpy as np
import pytest

from dovetail.planning.problem import Problem
from dovetail.planning.share.pairs import Completion, complete
from dovetail.planning.share.policies import POLICIES
from dovetail.vocabulary import Cluster, Device, Family, Kind, Member, Node, Option, Rejection

KINDS = ("new", "old")
NAMES = tuple(f"f{number}" for number in range(8))


def cluster(memory_bytes: int = 0) -> Cluster:
    return Cluster(
        kinds=tuple(Kind(name=kind, processor="cuda", memory_bytes=memory_bytes) for kind in KINDS),
        nodes=(Node(name="n", cores=8, memory_bytes=1 << 40),),
        devices=tuple(Device(name=f"n:{n}", kind=kind, node="n", index=n) for n, kind in enumerate(KINDS)),
    )


def load(name: str) -> float:
    """How heavy a family is; what it keeps and what it takes both follow from that."""
    return 0.2 + 0.1 * NAMES.index(name)


def alone(name: str, kind: str, *, device_bytes: int = 0) -> Option:
    rate = 10 ** (1 - load(name)) * (1 + 3 * load(name) if kind == "new" else 1.0)
    return Option(
        families=(name,),
        technique="resident",
        kind=kind,
        count=1,
        step_seconds=(1 / rate,),
        device_bytes=device_bytes,
    )


def kept(name: str, other: str) -> float:
    return 0.95 - 0.5 * load(other) - 0.2 * load(name) * load(other)


def pair(one: str, other: str, kind: str) -> Option:
    seconds = [alone(a, kind).step_seconds[0] / kept(a, b) for a, b in ((one, other), (other, one))]
    return Option(families=(one, other), technique="interleave", kind=kind, count=1, step_seconds=tuple(seconds))


def everyone() -> list[tuple[str, str]]:
    return [(one, other) for number, one in enumerate(NAMES) for other in NAMES[number:]]


def problem(measured: list[tuple[str, str]], *, members: int = 2, **changes: object) -> Problem:
    singles = [alone(name, kind) for name in NAMES for kind in KINDS]
    together = [pair(*couple, kind) for couple in measured for kind in KINDS]
    families = tuple(
        Family(name=name, members=tuple(Member(task=f"{name}-{n}", steps=9) for n in range(members))) for name in NAMES
    )
    made = Problem(cluster=cluster(), families=families, options=(*singles, *together))
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def median_error(found: Completion) -> float:
    off = []
    for option in found.options:
        true = pair(*option.families, option.kind)  # type: ignore[arg-type]
        off += [abs(a / b - 1) for a, b in zip(option.step_seconds, true.step_seconds, strict=True)]
    return float(np.median(off))


def test_a_quarter_of_the_pairs_tells_the_others() -> None:
    couples = random.Random(0).sample(everyone(), 9)
    found = complete(problem(couples))
    assert len(found.options) == 2 * (len(everyone()) - 9)
    assert not any(option.measured for option in found.options)
    assert median_error(found) < 0.05 < median_error(complete(problem(couples[:1])))
    assert found.error < 0.1


def test_where_nothing_is_measured_no_pair_pays() -> None:
    found = complete(problem([]))
    assert math.isnan(found.error)
    for option in found.options:
        halves = [2 * alone(name, option.kind).step_seconds[0] for name in option.families]
        assert option.step_seconds == pytest.approx(halves)
    unknown = problem([])
    more = dataclasses.replace(unknown, options=(*unknown.options, *found.options))
    for name in ("max_min_fairness", "throughput"):
        assert POLICIES[name](more).value == pytest.approx(POLICIES[name](unknown).value, rel=1e-6)


def test_the_error_is_what_leaving_a_couple_out_would_have_cost() -> None:
    couples = random.Random(1).sample(everyone(), 6)
    found = complete(problem(couples))
    for number, couple in enumerate(couples):
        others = [each for each in couples if each != couple]
        without = {(o.families, o.kind): o for o in complete(problem(others)).options}
        for place, kind in enumerate(KINDS):
            predicted, true = without[couple, kind], pair(*couple, kind)
            # In rates, not in seconds.
            off = [abs(b / a - 1) for a, b in zip(predicted.step_seconds, true.step_seconds, strict=True)]
            tolerance = 1e-6 if couple[0] != couple[1] else 1e-2
            assert found.errors[2 * number + place] == pytest.approx(np.mean(off), abs=tolerance)


def test_what_cannot_run_together_is_not_offered() -> None:
    refused = Rejection(families=("f1", "f0"), technique="interleave", kind="old", count=1, reason="too large")
    offered = {(o.families, o.kind) for o in complete(problem([], rejections=(refused,))).options}
    assert (("f0", "f1"), "new") in offered
    assert (("f0", "f1"), "old") not in offered
    lonely = {o.families for o in complete(problem([], members=1)).options}
    assert ("f0", "f0") not in lonely
    assert ("f0", "f1") in lonely
    large = tuple(alone(name, "new", device_bytes=6 if name == "f0" else 3) for name in ("f0", "f1", "f2"))
    small = problem([], options=large, cluster=cluster(memory_bytes=8))
    small = dataclasses.replace(small, families=small.families[:3])
    assert {o.families for o in complete(small).options} == {("f1", "f1"), ("f1", "f2"), ("f2", "f2")}
    wide = dataclasses.replace(alone("f0", "new"), count=2)
    apart = problem([], options=(wide, alone("f1", "new")))
    apart = dataclasses.replace(apart, families=apart.families[:2])
    assert {o.families for o in complete(apart).options} == {("f0", "f0"), ("f1", "f1")}


def test_pairs_are_predicted_anew_and_measurements_stay() -> None:
    known = problem([("f0", "f1"), ("f2", "f3")])
    once = complete(known)
    again = complete(dataclasses.replace(known, options=(*known.options, *once.options)))
    assert again.options == once.options


def test_the_first_trial_removes_the_most_doubt() -> None:
    small = problem([])
    small = dataclasses.replace(small, families=small.families[:4])
    found = complete(small)

    def doubt_after(option: Option) -> float:
        known = dataclasses.replace(option, measured=True)
        told = complete(dataclasses.replace(small, options=(*small.options, known)))
        left = [d for o, d in zip(told.options, told.doubts, strict=True) if len(set(o.families)) > 1]
        return float(np.square(left).sum())

    (first,) = found.trials(1)
    doubts = {(option.families, option.kind): doubt_after(option) for option in found.options}
    # What is chosen by removes doubt about both rates, not only about their sum, hence a little room.
    assert doubts[first.families, first.kind] <= min(doubts.values()) * 1.1


def test_trials_are_distinct_and_no_more_than_there_are() -> None:
    found = complete(problem(everyone()[:-2]))
    assert len(found.options) == 4
    tried = found.trials(10)
    assert {(o.families, o.kind) for o in tried} == {(o.families, o.kind) for o in found.options}
    assert complete(problem(everyone())).trials(3) == ()


def test_chosen_trials_tell_more_than_trials_at_random() -> None:
    nothing = complete(problem([]))

    def error(tried: list[Option]) -> float:
        known = [pair(*option.families, option.kind) for option in tried]  # type: ignore[arg-type]
        base = problem([])
        return median_error(complete(dataclasses.replace(base, options=(*base.options, *known))))

    at_random = [error(random.Random(seed).sample(nothing.options, 5)) for seed in range(8)]
    assert error(list(nothing.trials(5))) <= float(np.median(at_random))
