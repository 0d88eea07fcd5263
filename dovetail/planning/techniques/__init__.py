"""From what was measured to what planners choose between: one predictor for each technique.

A predictor turns a `Profile` of its technique into the `Option` that was measured; `spill.predict` also gives options
that nobody measured. It knows the technique's arithmetic and nothing of which options a cluster can hold:
`planning/options` asks that.
"""

from typing import Protocol

from dovetail.planning.techniques import fuse, interleave, pipeline, replicate, resident, shard, spill, together
from dovetail.vocabulary import Kind, Option, Profile


class Predictor(Protocol):
    """What every file of this folder offers as `option`. Pure: planners call it as often as they like.

    >>> from dovetail.vocabulary import Kind, Profile
    >>> predict: Predictor = PREDICTORS["resident"]
    >>> profile = Profile(family="f", kind="cpu", count=2, step_seconds=0.5, peak_bytes=0)
    >>> predict(profile, kind=Kind(name="cpu", processor="cpu")).count
    2
    """

    def __call__(self, profile: Profile, *, kind: Kind) -> Option:
        """The option that this profile, measured on `kind`, stands for."""
        ...


PREDICTORS: dict[str, Predictor] = {
    "fuse": fuse.option,
    "pipeline": pipeline.option,
    "replicate": replicate.option,
    "shard": shard.option,
    "resident": resident.option,
    "spill": spill.option,
    "interleave": interleave.option,
    "together": together.option,
}

__all__ = ["PREDICTORS", "Predictor"]
