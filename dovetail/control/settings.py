"""What a user may set of a run. Each has somebody who sets it; the rest is decided."""

import dataclasses
import math

from dovetail.vocabulary import InvalidWorkload


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a run saves and how patient it is.

    `checkpoints` is where they go, unless beside the store: a directory, or a URL that fsspec reaches, for clusters
    without a shared one. `retries` is how often a task may be lost in a row, with nothing newly saved in between.
    `exact` leaves out the techniques that equal training alone up to rounding, not to the bit: for those who compare
    bits. `trial_seconds` is how long trials may take, about: each family has its first one, and of the others those are
    made that could save most for what they take.

    >>> Settings().retries
    3
    """

    save_every_seconds: float = 30.0
    save_every_steps: int | None = None
    keep_count: int = 2
    keep_bytes: int | None = None
    checkpoints: str | None = None
    retries: int = 3
    exact: bool = False
    trial_seconds: float = math.inf

    def __post_init__(self) -> None:
        if self.save_every_seconds <= 0 or (self.save_every_steps is not None and self.save_every_steps < 1):
            raise InvalidWorkload(
                f"saving must happen after a positive time or number of steps, got "
                f"{self.save_every_seconds} s and {self.save_every_steps} steps."
            )
        if not self.trial_seconds >= 0:
            raise InvalidWorkload(f"trials must have 0 s or more, got {self.trial_seconds} s.")
        if self.keep_count < 1 or self.retries < 0:
            raise InvalidWorkload(
                f"keep at least 1 checkpoint and 0 retries, got {self.keep_count} and {self.retries}."
            )
