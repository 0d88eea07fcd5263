"""What a technique tells the rest of the product about itself, and what it is told to answer by.

One `TechniqueSpec` a technique holds its facts and its arithmetic: how it is measured, what a profile of it stands for,
what it is predicted to take where nobody measured it. Trials, options, orders and workers all ask it; nothing else
names a technique. Knows no torch: what runs is loaded from `runtime` by the process that runs it.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from dovetail.vocabulary import Cluster, FrozenDict, Kind, Option, Profile, Rejection
from dovetail.vocabulary.approximations import Approximate, names_of

Knobs = Mapping[str, Any]

#: What is only predicted must take at most this share of the time that was measured, to be worth a trial or a try: it
#: costs seconds on all devices.
CLEARLY = 0.85
#: How long the host takes to hand one kernel to an accelerator, in eager PyTorch, and how many a layer has: one
#: forward, two backward.
LAUNCH_SECONDS, KERNELS = 1e-5, 3
#: What Python takes of a step in which no layers could be told apart, as of one that the program takes: of small models
#: it is nearly all, and of large ones little.
UNSEEN_HOST_SECONDS = 2e-3


#: The approximations of techniques that keep an optimizer of the program's own for each task, and of those among them
#: that sum no gradients up in bf16.
MOMENTS = ("state-8bit", "state-bf16")
MOMENTS_AND_WEIGHTS = (*MOMENTS, "weights-bf16")

May = Callable[[str, Knobs], bool]


def allow_all(technique: str, knobs: Knobs) -> bool:
    """What users allow who forbid nothing.

    >>> allow_all("spill", {})
    True
    """
    return True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A short measured run that planning asks for; `knobs` where there are several of one technique. `compile_seconds`
    is what compiling is expected to take, in the trial and again where its option is used; trials that differ in
    nothing else are the same."""

    family: str
    technique: str
    kind: str
    count: int
    knobs: Knobs = FrozenDict()
    compile_seconds: float = dataclasses.field(default=0.0, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "knobs", FrozenDict(self.knobs))

    @property
    def members(self) -> int:
        """How many tasks run in it."""
        return int(self.knobs.get("members", 1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is known when a technique is asked what it wants tried or can offer.

    `members` says how many tasks of each family there are, for gangs; `failed` are trials that found an option not to
    fit, `imagined` the kinds on which nothing can be tried, and `alone` the options of single tasks that fit, with
    which a gang is compared. `may` says of a technique with its knobs whether users allow it. With `approximate` all of
    this is of steps that are taken so; what cannot be taken so and foretells others is there as it is.

    >>> profile = Profile(family="f", kind="cpu", count=1, step_seconds=0.5, peak_bytes=0)
    >>> found = Evidence(cluster=Cluster(kinds=(), nodes=(), devices=()), profiles=(profile,))
    >>> [each.count for each in found.of(technique="resident")], found.of(family="g")
    ([1], [])
    """

    cluster: Cluster
    profiles: tuple[Profile, ...] = ()
    members: Mapping[str, int] = FrozenDict()
    failed: frozenset[Trial] = frozenset()
    imagined: frozenset[str] = frozenset()
    alone: tuple[Option, ...] = ()
    may: May = allow_all
    approximate: str = ""

    def of(self, **fields: object) -> list[Profile]:
        """The profiles with these values of their fields."""
        return [p for p in self.profiles if all(getattr(p, name) == value for name, value in fields.items())]

    def is_too_large(self, family: str, kind: str) -> bool:
        """Whether whole batches of a family were found not to fit a device of a kind with all of the model there."""
        return (family, kind) in self._too_large

    def must_be_split(self, family: str, kind: str) -> bool:
        """Whether a family has to be trained with only a part of the model on a device of a kind at a time: because it
        is too large, or because users do not allow that it is resident."""
        return not self.may("resident", {}) or self.is_too_large(family, kind)

    @functools.cached_property
    def _too_large(self) -> frozenset[tuple[str, str]]:
        sizes = {kind.name: kind.memory_bytes for kind in self.cluster.kinds}
        found = {(each.family, each.kind) for each in self.failed if each.technique == "resident"}
        for profile in self.of(technique="resident"):
            # One with knobs is on a lower rung of the ladder: whole batches did not fit.
            if profile.knobs or 0 < sizes.get(profile.kind, 0) < profile.peak_bytes:
                found.add((profile.family, profile.kind))
        return frozenset(found)

    @functools.cached_property
    def whole(self) -> tuple[Profile, ...]:
        """The profiles without those whose whole batches did not fit alone: they have no room for others."""
        return tuple(each for each in self.profiles if each.technique != "resident" or not each.knobs)

    def least_seconds(self, kind: str) -> dict[str, float]:
        """The seconds of a step of each family that has a device of the kind for itself."""
        least: dict[str, float] = {}
        for option in self.alone:
            if option.kind == kind and len(option.families) == 1 and option.count == 1:
                (family,), (seconds,) = option.families, option.step_seconds
                least[family] = min(seconds, least.get(family, seconds))
        return least


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """The way down for a task that ran out of memory: `next_rung` gives the knobs to try after those that failed, or
    None, and `option` what is predicted of a profile with other knobs."""

    next_rung: Callable[..., dict[str, Any] | None]
    option: Callable[..., Option]


def _nothing(*_: object) -> tuple[()]:
    return ()


def _never(knobs: Knobs) -> bool:
    return False


def _divided(option: Option, evidence: Evidence, cores: int) -> float:
    return option.cores / max(1, cores)


def scale_perfectly(known: Option, trial: Trial, options: Iterable[Option]) -> Option:
    """The best that a trial on more devices could show: the least work, divided by their number.

    >>> one = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(1.0,))
    >>> scale_perfectly(one, Trial(family="f", technique="replicate", kind="cpu", count=4), [one]).step_seconds
    (0.25,)
    """
    return dataclasses.replace(
        known,
        technique=trial.technique,
        count=trial.count,
        step_seconds=(known.step_seconds[0] * known.count / trial.count,),
        knobs={**known.knobs, **trial.knobs},
        cores=0,
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TechniqueSpec:
    """A technique as planners, engines and the controller know it.

    Facts: `runtime` is where its `Technique` lies, as `module:object`, loaded by workers only. `ranked`: one process
    for each device, or one for all. `is_gang`: it trains several tasks at once. `rounds` says of knobs whether the
    result equals training alone only up to the order of floating-point sums. `knobs` are the names it understands, each
    with the values that planners choose among, or none where any will do. `trial_knobs` tell its trials apart. `apart`
    is the technique by which members of a gang train where each can have a process of its own on their device.
    `on_host`: the host's cores compute a part of each step. `visits`: a placement takes its task through a shard of
    data, and another one goes on from there. `shares_batches`: a gang's members say that they read the same.
    `approximations` are those that it can take its steps with. From profiles of one that `foretells` others are
    predicted, so that it is measured though users forbid its use.

    Functions, all pure: `option` is what a profile of it stands for. `trials` is what it wants measured of a family on
    a kind; whether that has been is not its business. `offers` are options that nobody measured, and rejections with
    the reason where that is worth telling. `ideal` is the best that a trial could show, by which its worth is judged.
    `slowed` says of a technique `on_host` how many times longer a step takes with fewer of the host's cores.

    >>> from dovetail.planning.techniques import TECHNIQUES
    >>> TECHNIQUES["replicate"].ranked, TECHNIQUES["replicate"].rounds({}), TECHNIQUES["pipeline"].rounds({})
    (True, True, False)
    """

    name: str
    runtime: str
    option: Callable[[Profile, Cluster], Option]
    trials: Callable[[Evidence, str, Kind], Iterable[Trial]] = _nothing
    offers: Callable[[Evidence], Iterable[Option | Rejection]] = _nothing
    ideal: Callable[[Option, Trial, Iterable[Option]], Option] = scale_perfectly
    ladder: Ladder | None = None
    ranked: bool = False
    is_gang: bool = False
    foretells: bool = False
    apart: str = ""
    on_host: bool = False
    visits: bool = False
    shares_batches: bool = False
    approximations: tuple[str, ...] = ()
    slowed: Callable[[Option, Evidence, int], float] = _divided
    rounds: Callable[[Knobs], bool] = _never
    knobs: Mapping[str, tuple[Any, ...]] = FrozenDict()
    trial_knobs: tuple[str, ...] = ()

    def can_train(self, approximate: Approximate) -> bool:
        """Whether it can take its steps so.

        >>> from dovetail.planning.techniques import TECHNIQUES
        >>> [TECHNIQUES[name].can_train("weights-bf16") for name in ("spill", "fuse")], TECHNIQUES["fuse"].can_train("")
        ([True, False], True)
        """
        return set(names_of(approximate)) <= set(self.approximations)

    def threads(self, count: int) -> int:
        """How many of a CPU's cores each process has of an option on so many devices."""
        return 1 if self.ranked else count


def always(knobs: Knobs) -> bool:
    """For techniques that round whatever their knobs.

    >>> always({})
    True
    """
    return True


def on_its_kind(option: Callable[..., Option]) -> Callable[[Profile, Cluster], Option]:
    """An option of a profile, read with the kind that it was measured on.

    >>> from dovetail.planning.techniques import resident
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"))
    >>> profile = Profile(family="f", kind="cpu", count=1, step_seconds=0.5, peak_bytes=0)
    >>> on_its_kind(resident.option)(profile, cluster).step_seconds
    (0.5,)
    """
    return lambda profile, cluster: option(profile, kind=cluster.kind(profile.kind))


def with_layers(profiles: Iterable[Profile]) -> list[Profile]:
    """One profile a family whose layers are known well enough to predict other techniques from them: the resident one
    where there are two.

    >>> with_layers([Profile(family="f", kind="cpu", count=1, step_seconds=0.5, peak_bytes=0)])
    []
    """
    found: dict[str, Profile] = {}
    for profile in profiles:
        is_timed = any(layer.forward_seconds + layer.backward_seconds > 0 for layer in profile.layers)
        is_sized = any(layer.parameter_bytes for layer in profile.layers)
        is_better = profile.technique == "resident" or profile.family not in found
        if is_timed and is_sized and is_better:
            found[profile.family] = profile
    return list(found.values())


def gang_sizes(members: int, *, most: int) -> Iterator[int]:
    """The sizes worth offering for gangs of a family with so many tasks: all small ones, powers of two, all tasks at
    once, and what divides them into two, three or four equal gangs.

    >>> list(gang_sizes(6, most=64)), list(gang_sizes(50, most=64)), list(gang_sizes(10_000, most=64))
    ([2, 3, 4, 5, 6], [2, 3, 4, 5, 6, 7, 8, 13, 16, 17, 25, 32, 50], [2, 3, 4, 5, 6, 7, 8, 16, 32, 64])
    """
    sizes = {*range(2, 9), 16, 32, 64, *(-(-members // parts) for parts in (1, 2, 3, 4))}
    yield from (size for size in sorted(sizes) if 2 <= size <= min(members, most))


def gang_beside(trial: Trial, options: Iterable[Option]) -> Option | None:
    """The gang of a trial's family, kind and size as it trains side by side, where that is an option.

    >>> gang_beside(Trial(family="f", technique="fuse", kind="h200", count=1, knobs={"members": 3}), []) is None
    True
    """
    families = (trial.family,) * trial.members
    same = (each for each in options if each.technique == "beside" and each.families == families)
    return next((each for each in same if each.kind == trial.kind), None)


def device_seconds(profile: Profile, *, kind: Kind) -> float:
    """How long a step keeps the device at work: its layers, forward and backward, and the update, which reads and
    writes parameters, gradients and the optimizer's state. Where no layers were measured, all of the step but what
    Python is taken to need.

    >>> device_seconds(Profile(family="f", kind="cpu", count=1, step_seconds=0.4, peak_bytes=0),
    ...                kind=Kind(name="cpu", processor="cpu"))
    0.398
    """
    layers = sum(layer.forward_seconds + layer.backward_seconds for layer in profile.layers)
    if not layers:
        return max(0.0, profile.step_seconds - UNSEEN_HOST_SECONDS)
    updated_bytes = 3 * profile.parameter_bytes + 2 * profile.optimizer_bytes
    rate = kind.memory_bytes_per_second
    return profile.accumulate * layers + (updated_bytes / rate if rate else 0.0)


def launch_seconds(profile: Profile, *, kind: Kind) -> float:
    """What the host takes to hand a step's kernels to an accelerator, while that computes: no step takes less.

    >>> launch_seconds(Profile(family="f", kind="cpu", count=1, step_seconds=0.4, peak_bytes=0),
    ...                kind=Kind(name="cpu", processor="cpu"))
    0.0
    """
    return 0.0 if kind.processor == "cpu" else KERNELS * LAUNCH_SECONDS * profile.accumulate * len(profile.layers)


def host_seconds(profile: Profile, *, kind: Kind) -> float:
    """What is left of a step beside the device's work: reading batches, Python. It stays on whatever device, and on
    however many.

    >>> profile = Profile(family="f", kind="cpu", count=1, step_seconds=0.4, peak_bytes=0)
    >>> round(host_seconds(profile, kind=Kind(name="cpu", processor="cpu")), 6)
    0.002
    """
    busy = max(device_seconds(profile, kind=kind), launch_seconds(profile, kind=kind))
    return max(0.0, profile.step_seconds - busy)


def divided_seconds(profile: Profile, *, kind: Kind, count: int) -> float:
    """A step whose rows are divided over so many devices, each with a process: the device's work is divided, what the
    host takes is not.

    >>> divided_seconds(Profile(family="f", kind="cpu", count=1, step_seconds=0.4, peak_bytes=0),
    ...                 kind=Kind(name="cpu", processor="cpu"), count=2)
    0.201
    """
    host = host_seconds(profile, kind=kind)
    work = min(device_seconds(profile, kind=kind), profile.step_seconds)  # layers measured one by one may take longer
    return host + max(work / count, launch_seconds(profile, kind=kind))
