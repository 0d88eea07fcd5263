"""What was measured: layers, whole steps, devices."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from dovetail.vocabulary.errors import InvalidRecord
from dovetail.vocabulary.feeds import StageProfile
from dovetail.vocabulary.records import FrozenDict
from dovetail.vocabulary.shards import ShardSet


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfile:
    """One layer of a model, as measured for one batch.

    A layer is a module that holds no other module with work of its own. `activation_bytes` is its
    output; parameters shared with an earlier layer count there.

    >>> LayerProfile(name="0", operation="Linear", forward_seconds=1e-3, backward_seconds=2e-3).activation_bytes
    0
    """

    name: str
    operation: str
    forward_seconds: float
    backward_seconds: float
    activation_bytes: int = 0
    parameter_bytes: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What was measured of a family on a kind with a device count: whole steps, memory, and the graph of
    layers, whose `edges` are pairs of layer names, data flowing from the first to the second.

    `knobs` are those of the option that was measured, `host_bytes` and `disk_bytes` what it took there (zero: not
    known). `accumulate`, `clips`, `precision` and `timetable` are what the training says of its steps: a prediction
    for another technique needs them. `shares` names the batches that it reads, if others read the same, and
    `batch_seconds` is what reading one takes. `build_seconds` is what building one task takes, `compile_seconds` what
    the first steps of all that train together take beyond others. `busy_seconds` is how long a step keeps the device at
    work where nobody keeps it waiting (zero: not known), `update_seconds` how long the host updates weights in one, if
    it does. `waits_seconds` is for how long a step waits for its batches, and `feed` are the stages of the feed
    that reads them, if one does.

    >>> Profile(family="f", kind="cpu", count=1, step_seconds=0.01, peak_bytes=1 << 20).steps_per_epoch is None
    True
    """

    family: str
    kind: str
    count: int
    step_seconds: float
    peak_bytes: int
    technique: str = "resident"
    parameter_bytes: int = 0
    optimizer_bytes: int = 0
    batch_bytes: int = 0
    steps_per_epoch: int | None = None
    evaluate_seconds: float = 0.0
    evaluate_every: int | None = None
    build_seconds: float = 0.0
    compile_seconds: float = 0.0
    save_seconds: float = 0.0
    metrics: tuple[str, ...] = ()
    layers: tuple[LayerProfile, ...] = ()
    edges: tuple[tuple[str, str], ...] = ()
    versions: str = ""
    knobs: Mapping[str, Any] = FrozenDict()
    host_bytes: int = 0
    disk_bytes: int = 0
    accumulate: int = 1
    clips: bool = False
    precision: str = "fp32"
    timetable: str = ""
    shares: str = ""
    batch_seconds: float = 0.0
    busy_seconds: float = 0.0
    update_seconds: float = 0.0
    waits_seconds: float = 0.0
    feed: tuple[StageProfile, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "knobs", FrozenDict(self.knobs))
        # Written so that NaN fails too.
        if not (0 < self.step_seconds < math.inf and self.peak_bytes >= 0 and self.count >= 1):
            raise InvalidRecord(
                f"a profile must have step_seconds > 0, peak_bytes >= 0 and count >= 1, "
                f"got {self.step_seconds}, {self.peak_bytes}, {self.count}."
            )

    @property
    def computing_seconds(self) -> float:
        """What a step takes where it need not wait for its batches."""
        return max(1e-6, self.step_seconds - self.waits_seconds)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What a worker learns of a task by building it: the family it belongs to and what planning needs of
    it before anything is measured; `shards` where its data are pieces that lie on nodes, and those of its `evaluation`,
    which it has every so many steps, where these do. Of approximations, those that its program allows, and those that
    it can have where somebody else allows them.

    >>> Fingerprint(family="f", steps_per_epoch=10).steps_per_epoch
    10
    """

    family: str
    steps_per_epoch: int | None = None
    evaluates: bool = False
    versions: str = ""
    shards: ShardSet | None = None
    evaluation: ShardSet | None = None
    evaluate_every: int | None = None
    allow: tuple[str, ...] = ()
    approximations: tuple[str, ...] = ()
