"""What a fused gang takes: K tasks of one family in step with each other on one device.

The model, stated: beyond what launching its operations takes, which all members share, each member adds the same
seconds and the same bytes. So both are lines in K. Where gangs of two sizes were measured, the line goes through them
(the two nearest to K where there are more). Where only one was, of m members in s_m seconds,

    seconds(K) = s_m + (K − m) · max((s_m − s_1) / (m − 1), traffic)  for K > m     bytes(K) likewise, without traffic

with s_1 the step of one task alone. `traffic` is what the updates of one more member move (parameters, gradients and
optimizer state, once each way) at the memory rate of the kind: a small gang can take no longer than one task, and
without that bound a large one would be free. Below m the line goes through what a gang of one takes, and does not rise
towards it: on an accelerator a step replayed from a graph, else twice s_1, for what fusing itself takes does not shrink
with the gang (on a CPU, of four families lines through two measured gangs gave 1.5 to 2.0 × s_1 there). A frozen base
that all share is in the bytes of one task and not in the slope, so it is counted once without anybody saying so.

Families of like layers, whose steps alone take about as long, are not all tried: two are, and the others borrow, in
proportion to what they take alone. A random search over widths and depths has many families and little time.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

from dovetail.planning.fitting import misfit
from dovetail.planning.techniques import resident
from dovetail.planning.techniques.base import (
    MOMENTS,
    Evidence,
    TechniqueSpec,
    Trial,
    always,
    gang_beside,
    gang_sizes,
    on_its_kind,
)
from dovetail.vocabulary import FrozenDict, Kind, Option, Profile

# So many of a family are fused in its first trial, and at most so many at all.
TRIED, _MOST = 4, 64
# The first trial is of as many as there are, where building them takes no longer than this.
_BUILD_SECONDS = 1.0
# So many of like families are tried for all of them.
_OF_A_LIKENESS = 2
# What a step of one member by itself takes in a fused program, over that of the plain one.
_FUSING = 2.0
# Steps on a CPU are tried fused only where they are shorter than this: fusing saves the time between operations.
_SHORT_SECONDS = 0.005
# A second size is tried where it is so much larger than the first: otherwise the line is known well enough.
_LARGER = 1.5
# Compiling halves a step at best (GPTs on an H200: 10.9 ms instead of 20.7) and takes about so long to begin with, and
# for each layer: 11 s for 5 layers, 25 s for 40, more than a minute for Llamas of 24 blocks.
_COMPILED_SHARE, _COMPILE_SECONDS, _LAYER_SECONDS = 0.5, 9.0, 0.4
# Where processes side by side fill an accelerator, fusing leaves at least so much of what they take.
_LEAST_OF_APART = 0.75
# Bytes a second of a memory that nobody measured: one channel of a host, and a small device.
_UNKNOWN = {"cpu": 10e9, "cuda": 300e9}


def option(profile: Profile, *, kind: Kind) -> Option:
    """The gang that was measured: `knobs["members"]` of the family.

    >>> profile = Profile(family="f", kind="h200", count=1, step_seconds=0.002, peak_bytes=1 << 30, technique="fuse",
    ...                   knobs={"members": 4})
    >>> option(profile, kind=Kind(name="h200", processor="cuda")).step_seconds
    (0.002, 0.002, 0.002, 0.002)
    """
    members = _size(profile)
    apart = dataclasses.replace(profile, compile_seconds=0.0)
    one = resident.option(dataclasses.replace(apart, evaluate_seconds=0.0), kind=kind)
    evaluating = resident.option(apart, kind=kind)
    # Members are evaluated one after another, while the others wait.
    share = evaluating.step_seconds[0] - one.step_seconds[0]
    once = evaluating.start_seconds - one.start_seconds
    return dataclasses.replace(
        one,
        families=one.families * members,
        technique="fuse",
        step_seconds=(profile.step_seconds + members * share,) * members,
        start_seconds=members * (one.start_seconds + once) + profile.compile_seconds,
        knobs={name: value for name, value in profile.knobs.items() if name != "members"},
        host_bytes=one.host_bytes if kind.processor == "cpu" else members * one.host_bytes,
    )


def predict(
    measured: Sequence[Profile], *, alone: Profile, kind: Kind, members: int, one_seconds: float | None = None
) -> Option:
    """A gang of another size, from measured ones and one task alone on the same device. `one_seconds` is what a gang of
    one takes, where that is known.

    >>> cpu = Kind(name="cpu", processor="cpu")
    >>> alone = Profile(family="f", kind="cpu", count=1, step_seconds=0.01, peak_bytes=100 << 20)
    >>> four, eight = (Profile(family="f", kind="cpu", count=1, step_seconds=seconds, peak_bytes=size << 20,
    ...                        technique="fuse", knobs={"members": members})
    ...                for members, seconds, size in [(4, 0.016, 130), (8, 0.018, 170)])
    >>> ten = predict([four], alone=alone, kind=cpu, members=10)
    >>> len(ten.families), round(ten.step_seconds[0], 6), ten.host_bytes >> 20, ten.measured
    (10, 0.028, 190, False)
    >>> [round(predict([four, eight], alone=alone, kind=cpu, members=size).step_seconds[0], 6) for size in (2, 6, 10)]
    [0.015, 0.017, 0.019]
    """
    one_seconds = _FUSING * alone.step_seconds if one_seconds is None else one_seconds
    nearest, each_seconds, each_bytes = _line(measured, alone, kind, members, one_seconds)
    more = members - _size(nearest)
    sized = dataclasses.replace(
        nearest,
        # A smaller gang takes no less for each member than a larger one does.
        step_seconds=max(nearest.step_seconds + more * each_seconds, nearest.step_seconds * _share(nearest, members)),
        peak_bytes=max(nearest.peak_bytes + more * each_bytes, alone.peak_bytes),
        knobs={**nearest.knobs, "members": members},
    )
    return dataclasses.replace(option(sized, kind=kind), measured=False)


def _share(measured: Profile, members: int) -> float:
    return min(1.0, members / _size(measured))


def _line(
    measured: Sequence[Profile], alone: Profile, kind: Kind, members: int, one_seconds: float
) -> tuple[Profile, float, int]:
    """The measured gang to start from, and the seconds and bytes that each further member adds to it."""
    gangs = sorted(measured, key=_size)
    nearest = min(gangs, key=lambda gang: abs(_size(gang) - members))
    traffic = 2 * (2 * nearest.parameter_bytes + nearest.optimizer_bytes)
    least_seconds = traffic / (kind.memory_bytes_per_second or _UNKNOWN[kind.processor])
    if len(gangs) > 1:
        small, large = _around(gangs, members)
        between = _size(large) - _size(small)
        seconds = (large.step_seconds - small.step_seconds) / between
        each_bytes = max(0, large.peak_bytes - small.peak_bytes) // between
        return nearest, max(seconds, least_seconds if members > _size(large) else 0.0), each_bytes
    others = max(1, _size(nearest) - 1)
    more_bytes = max(0, nearest.peak_bytes - alone.peak_bytes) // others
    if members < _size(nearest):
        return nearest, max(0.0, (nearest.step_seconds - one_seconds) / others), more_bytes
    return nearest, max((nearest.step_seconds - alone.step_seconds) / others, least_seconds), more_bytes


def _around(gangs: Sequence[Profile], members: int) -> tuple[Profile, Profile]:
    """The two measured gangs between which a size lies, or the two nearest on its side."""
    pairs = list(itertools.pairwise(gangs))
    return next((pair for pair in pairs if members <= _size(pair[1])), pairs[-1])


def _size(profile: Profile) -> int:
    return int(profile.knobs.get("members", TRIED))


def trials(evidence: Evidence, family: str, kind: Kind) -> Iterator[Trial]:
    """Of a family with several tasks, once one was measured alone: a gang of all that surely fit and are built at once,
    since the gain of a small one says little; then, where there are clearly more tasks, a gang of as many as fit, so
    that other sizes are predicted from two; and on an accelerator a compiled one of that size. Whether a family can be
    fused at all only the first trial can say; one that can borrow from others finds out when it starts."""
    alone = _alone(evidence, family, kind.name, 1)
    count = evidence.members.get(family, 1)
    if alone is None or not _may_fuse(evidence, alone, kind) or _waits_for_graph(evidence, alone, kind):
        return
    known = evidence.of(family=family, kind=kind.name, technique="fuse", count=1)
    plain = [each for each in known if each.knobs.get("compile") != "full"]
    if not plain:
        if family in _tried_of_its_like(evidence, alone, kind):
            yield _trial(family, kind, members=_first_size(evidence, alone, kind))
        return
    largest = max(map(_size, plain))
    fitting = [
        size
        for size in gang_sizes(count, most=_MOST)
        if size >= _LARGER * largest
        and misfit(predict(plain, alone=alone, kind=kind, members=size), evidence.cluster) is None
    ]
    if fitting:
        yield _trial(family, kind, members=max(fitting))
    if kind.processor == "cuda" and len(plain) == len(known):
        seconds = _COMPILE_SECONDS + _LAYER_SECONDS * len(alone.layers)
        compiled = _trial(family, kind, members=largest, compile="full")
        yield dataclasses.replace(compiled, compile_seconds=seconds)


def _waits_for_graph(evidence: Evidence, alone: Profile, kind: Kind) -> bool:
    """Whether it is not known yet how long a step takes that is replayed, after which fewer gangs are worth trying."""
    if kind.processor == "cpu" or not evidence.may("graph", {}) or len(_like(evidence, alone, kind)) > _OF_A_LIKENESS:
        return False  # of many that are alike two are fused for all, and that may pay where a graph of each does not
    family = alone.family
    tried = evidence.of(family=family, kind=kind.name, technique="graph")
    return not tried and not any((each.family, each.technique) == (family, "graph") for each in evidence.failed)


def _may_fuse(evidence: Evidence, alone: Profile, kind: Kind) -> bool:
    """Whether a family has several tasks, of short steps that fit, and no trial has found it impossible."""
    family = alone.family
    is_short = kind.processor != "cpu" or alone.step_seconds < _SHORT_SECONDS
    has_failed = any(
        (each.family, each.technique, each.kind) == (family, "fuse", kind.name) and "compile" not in each.knobs
        for each in evidence.failed
    )
    is_able = is_short and not has_failed and not evidence.is_too_large(family, kind.name)
    return is_able and evidence.members.get(family, 1) > 1


def _tried_of_its_like(evidence: Evidence, alone: Profile, kind: Kind) -> list[str]:
    """The families like this one that are tried for all of them: those with the most tasks."""
    like = _like(evidence, alone, kind)
    like.sort(key=lambda each: (-evidence.members.get(each.family, 1), each.family))
    return [each.family for each in like[:_OF_A_LIKENESS]]


def _like(evidence: Evidence, alone: Profile, kind: Kind) -> list[Profile]:
    """Families of which gangs take about the same share of what one task does, this one among them."""
    mine = _likeness(alone)
    return [
        each
        for each in evidence.of(technique="resident", kind=kind.name, count=1, knobs=FrozenDict())
        if each.family == alone.family or (mine and _likeness(each) == mine and _may_fuse(evidence, each, kind))
    ]


def _likeness(alone: Profile) -> tuple[object, ...]:
    """What families have in common whose gangs take about the same share of what their tasks take alone."""
    operations = frozenset(layer.operation for layer in alone.layers)
    if not operations:
        return ()
    return operations, alone.precision, alone.accumulate, alone.clips, math.frexp(alone.step_seconds)[1]


def _borrowed(evidence: Evidence, alone: Profile, kind: Kind) -> list[Profile]:
    """Gangs of a family that has none measured, from those of the like family nearest to it."""
    if not _may_fuse(evidence, alone, kind):
        return []
    lenders = []
    for family in _tried_of_its_like(evidence, alone, kind):
        lender = _alone(evidence, family, kind.name, alone.count)
        gangs = evidence.of(family=family, kind=kind.name, technique="fuse", count=alone.count)
        if lender is not None and gangs:
            lenders.append((abs(lender.step_seconds - alone.step_seconds), lender, gangs))
    if not lenders:
        return []
    _, lender, gangs = min(lenders, key=lambda each: each[0])
    slower, larger = alone.step_seconds / lender.step_seconds, alone.peak_bytes / max(1, lender.peak_bytes)
    return [
        dataclasses.replace(
            alone,
            technique="fuse",
            step_seconds=gang.step_seconds * slower,
            peak_bytes=int(gang.peak_bytes * larger),
            build_seconds=max(alone.build_seconds, gang.build_seconds),
            knobs=gang.knobs,
            layers=(),
            edges=(),
        )
        for gang in gangs
    ]


def _first_size(evidence: Evidence, alone: Profile, kind: Kind) -> int:
    count = evidence.members[alone.family]
    one = resident.option(alone, kind=kind)
    fitting = (
        size
        for size in gang_sizes(count, most=_MOST)
        if size * alone.build_seconds < _BUILD_SECONDS
        and misfit(
            dataclasses.replace(one, device_bytes=size * one.device_bytes, host_bytes=size * one.host_bytes),
            evidence.cluster,
        )
        is None
    )
    return max(fitting, default=min(TRIED, count))


def _trial(family: str, kind: Kind, **knobs: object) -> Trial:
    return Trial(family=family, technique="fuse", kind=kind.name, count=1, knobs=knobs)


def _alone(evidence: Evidence, family: str, kind: str, count: int) -> Profile | None:
    found = evidence.of(family=family, kind=kind, count=count, technique="resident")
    return next((each for each in found if not each.knobs), None)


def ideal(known: Option, trial: Trial, options: Iterable[Option]) -> Option:
    """The best that a trial could show: that a first gang takes no longer than one task alone, a larger one no longer
    than the largest so far, a compiled one half as long.

    >>> one = Option(families=("f",), technique="resident", kind="h200", count=1, step_seconds=(1.0,))
    >>> trial = Trial(family="f", technique="fuse", kind="h200", count=1, knobs={"members": 3})
    >>> ideal(one, trial, [one]).step_seconds
    (1.0, 1.0, 1.0)
    """
    mine = [each for each in options if each.technique == "fuse" and each.kind == trial.kind and each.measured]
    gangs = [each for each in mine if set(each.families) == {trial.family}]
    seconds = max(gangs, key=lambda each: len(each.families)).step_seconds[0] if gangs else known.step_seconds[0]
    if apart := gang_beside(trial, options):
        seconds = max(seconds, _LEAST_OF_APART * apart.step_seconds[0])
    is_compiled = "compile" in trial.knobs
    return dataclasses.replace(
        known,
        families=known.families[:1] * trial.members,
        technique="fuse",
        step_seconds=(seconds * (_COMPILED_SHARE if is_compiled else 1.0),) * trial.members,
        start_seconds=trial.members * known.start_seconds + trial.compile_seconds,
        cores=0,
    )


def offers(evidence: Evidence) -> Iterator[Option]:
    """Gangs of other sizes than the measured ones, where they beat their members one after another."""
    for alone in evidence.of(technique="resident", knobs=FrozenDict()):
        kind = evidence.cluster.kind(alone.kind)
        measured = evidence.of(technique="fuse", family=alone.family, kind=alone.kind, count=alone.count)
        best = evidence.least_seconds(alone.kind).get(alone.family, float("inf"))
        replayed = evidence.of(technique="graph", family=alone.family, kind=alone.kind, count=alone.count)
        one_seconds = min((each.step_seconds for each in replayed), default=None)
        groups: dict[object, list[Profile]] = {}
        for profile in measured or _borrowed(evidence, alone, kind):
            groups.setdefault(profile.knobs.get("compile"), []).append(profile)
        for gangs in groups.values():
            for size in gang_sizes(evidence.members.get(alone.family, 1), most=_MOST):
                if measured and size in map(_size, gangs):
                    continue
                found = predict(gangs, alone=alone, kind=kind, members=size, one_seconds=one_seconds)
                if found.step_seconds[0] < size * best:
                    yield found


SPEC = TechniqueSpec(
    name="fuse",
    runtime="dovetail.train.fuse:FUSE",
    option=on_its_kind(option),
    trials=trials,
    offers=offers,
    ideal=ideal,
    is_gang=True,
    rounds=always,
    # None: captured in a CUDA graph on an accelerator, as it is on a CPU.
    knobs={"compile": (None, "full")},
    trial_knobs=("members", "compile"),
    approximations=(*MOMENTS, "attention-masks"),
)
