"""What a feed gives, as a formula of its stages' workers. Chooses nothing.

A final item is what the feed gives at its end, mostly a batch. Stage i makes v_i items for one of them: v of the last
stage is 1, and v of the one before is v_i · inputs_i. Stages of one kind of worker share its workers, as the running
feed has it: a pool k of n_k, whose stages take s_i and slow down by the universal law (`StageProfile.rate`), gives

    r_k(n) = n / Σ_(i in k) v_i s_i (1 + σ_i (n - 1) + κ_i n (n - 1))

final items per second, and throughput is

    T = min( min_k r_k(n_k),  cores / (Σ v_i cpu_i + cpu of the consumer),  1 / (Σ v_i lock_i + lock of the consumer),
             consumer )

where of a process lock_i is what handing an item in and out takes of this one. Neighbours that are both in processes
hand nothing over between them: of a row of them the first pays its half on the way in, and the last its half on the way
out. A pool has one worker for each of its stages at least. Memory is Σ n_k (worker_k + most_k) + Σ buffer_i bytes,
where most_k is that of a pool's stages in proportion to how long each keeps a worker; what is really held the running
feed counts. Cores and lock bound T and not the workers: a worker that waits for a disk takes no core, and one more
worker than there are cores loses nothing that is worth counting.

A consumer that hands kernels over to an accelerator counts as holding the lock for as long as it computes. Really it
lets go of it with every kernel, hundreds of times a step, and waits for whoever took it meanwhile. If to pass it on
took no time, these waits would be what others hold it for, and a step the sum of both. That it does take time each time
(the convoy) is not in the formula, since nobody counts how often: beside threads the sum is the least to expect. Where
the device is the slower part, though, the consumer leaves the lock to the feed while it waits, and the sum is too much.
Both errors grow with lock_i.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from dovetail.vocabulary.feeds import FeedConsumer, StagePlan, StageProfile

CORES, LOCK, MEMORY, CONSUMER, LINK = "cores", "the interpreter's lock", "memory", "the consumer", "the link"
"""What may be a feed's wall beside a stage."""
ANYONE = FeedConsumer()
"""A consumer of whom nothing is known: it takes all there is, and needs nothing for it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FeedModel:
    """The stages of a feed in their order, each with the profile of the kind of worker that it has.

    >>> read = StageProfile(name="read", worker="thread", service_seconds=4e-3)
    >>> batch = StageProfile(name="batch", worker="thread", service_seconds=1e-3, cpu_seconds=1e-3, inputs=16)
    >>> FeedModel(profiles=(read, batch)).visits
    (16.0, 1.0)
    """

    profiles: tuple[StageProfile, ...]
    visits: tuple[float, ...] = dataclasses.field(init=False)
    """How many items each stage makes for one that the feed gives."""
    paid: tuple[StageProfile, ...] = dataclasses.field(init=False, repr=False)
    """The profiles without what stages are spared of handing items over."""

    def __post_init__(self) -> None:
        found = [1.0]
        for profile in reversed(self.profiles[1:]):
            found.append(found[-1] * profile.inputs)
        object.__setattr__(self, "visits", tuple(reversed(found)))

        object.__setattr__(self, "paid", tuple(map(self._pay, range(len(self.profiles)))))

    def _pay(self, stage: int) -> StageProfile:
        """A stage's profile, less what it is spared where its neighbours are in processes as it is."""
        profile = self.profiles[stage]
        around = (stage - 1, stage + 1)
        near = sum(0 <= other < len(self.profiles) and self.profiles[other].worker == "process" for other in around)
        if profile.worker != "process" or not near:
            return profile
        spared = near / 2 * profile.lock_seconds
        return dataclasses.replace(
            profile,
            service_seconds=max(0.0, profile.service_seconds - spared),
            cpu_seconds=max(0.0, profile.cpu_seconds - spared),
            lock_seconds=profile.lock_seconds - spared,
            beside_seconds=max(0.0, profile.beside_seconds - spared),
        )

    @property
    def cpu_seconds(self) -> float:
        """Core seconds of one final item."""
        return sum(visits * profile.cpu_seconds for visits, profile in zip(self.visits, self.paid, strict=True))

    @property
    def lock_seconds(self) -> float:
        """For how long one final item holds the lock of the main process's interpreter."""
        return sum(visits * profile.lock_seconds for visits, profile in zip(self.visits, self.paid, strict=True))

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of workers that its stages have."""
        return tuple(dict.fromkeys(profile.worker for profile in self.profiles))

    def stages_of(self, kind: str) -> list[int]:
        """The numbers of the stages that share the workers of a kind."""
        return [number for number, profile in enumerate(self.profiles) if profile.worker == kind]

    def seconds(self, stage: int) -> float:
        """For how long a final item keeps a worker busy in one stage."""
        return self.visits[stage] * self.paid[stage].service_seconds

    def pool(self, kind: str) -> StageProfile:
        """The stages of a kind as one, for each final item. It is called as the one that takes longest.

        >>> read = StageProfile(name="read", worker="thread", service_seconds=4e-3)
        >>> decode = StageProfile(name="decode", worker="thread", service_seconds=1e-3)
        >>> FeedModel(profiles=(read, decode)).pool("thread").rate(5)
        1000.0
        """
        stages = self.stages_of(kind)
        return StageProfile(
            name=self.profiles[max(stages, key=self.seconds)].name,
            worker=kind,
            service_seconds=sum(map(self.seconds, stages)),
            contention=self._mean(stages, [self.paid[stage].contention for stage in stages]),
            coherency=self._mean(stages, [self.paid[stage].coherency for stage in stages]),
        )

    def _mean(self, stages: Sequence[int], values: Sequence[float]) -> float:
        """The mean of what stages have, each counted by how long it keeps a worker."""
        total = sum(map(self.seconds, stages))
        if not total:
            return max(values)
        return sum(self.seconds(stage) * value for stage, value in zip(stages, values, strict=True)) / total

    def limits(self, *, cores: float, consumer: FeedConsumer = ANYONE) -> dict[str, float]:
        """Final items per second that each thing allows that stages and consumer share.

        >>> loop = StageProfile(name="loop", worker="thread", service_seconds=0.5, cpu_seconds=0.5, lock_seconds=0.25)
        >>> FeedModel(profiles=(loop,)).limits(cores=4)
        {'the consumer': inf, "the interpreter's lock": 4.0, 'cores': 8.0}
        """
        cpu_seconds = self.cpu_seconds + consumer.cpu_seconds
        lock_seconds = self.lock_seconds + consumer.lock_seconds
        return {
            CONSUMER: math.inf if consumer.per_second is None else consumer.per_second,
            LOCK: 1 / lock_seconds if lock_seconds else math.inf,
            CORES: cores / cpu_seconds if cpu_seconds else math.inf,
        }

    def least_buffer(self, stage: int) -> int:
        """The bytes that must be able to wait behind a stage: one item, or as many as the next makes one of."""
        following = self.profiles[stage + 1 :]
        # A filter makes one item of several, too, but one after another. Nothing tells it from a batch here, and to
        # keep room for those it passes over does no harm where there is some.
        gathered = math.ceil(following[0].inputs) if following else 1
        profile = self.profiles[stage]
        return max(profile.most_bytes, gathered * profile.item_bytes)

    def worker_bytes(self, kind: str) -> float:
        """The bytes of one more worker of a kind, and of the item that it is at work on."""
        stages = self.stages_of(kind)
        return self.own_bytes(kind) + self._mean(stages, [self.profiles[stage].most_bytes for stage in stages])

    def own_bytes(self, kind: str) -> int:
        """The bytes of one more worker of a kind by itself."""
        return max(self.profiles[stage].worker_bytes for stage in self.stages_of(kind))

    def least_bytes(self, pools: Mapping[str, int]) -> float:
        """The bytes of so many workers of each kind with the least buffers."""
        workers = sum(count * self.worker_bytes(kind) for kind, count in pools.items())
        return workers + sum(map(self.least_buffer, range(len(self.profiles))))

    def least_pools(self) -> dict[str, int]:
        """The fewest workers of each kind: one for each stage."""
        return {kind: len(self.stages_of(kind)) for kind in self.kinds}


def by_stage(profiles: Sequence[StageProfile]) -> dict[str, dict[str, StageProfile]]:
    """Profiles by stage, in the order of the feed, and by kind of worker."""
    found: dict[str, dict[str, StageProfile]] = {}
    for profile in profiles:
        found.setdefault(profile.name, {})[profile.worker] = profile
    return found


def model_of(profiles: Sequence[StageProfile], stages: Sequence[StagePlan]) -> FeedModel:
    """The model of a feed whose stages have these kinds of workers; one that was not measured counts as the other."""
    measured = by_stage(profiles)
    return FeedModel(profiles=tuple(_profile(measured[stage.name], stage.worker) for stage in stages))


def _profile(measured: Mapping[str, StageProfile], worker: str) -> StageProfile:
    return measured.get(worker) or next(iter(measured.values()))
