"""Two contestants compared: how much of a speed-up is of the system, in seconds a step, and how much of the learning,
in steps; each with its interval, and whether fewer steps may be chance."""

import dataclasses
import math
from collections.abc import Sequence

from dovetail.metrics.race.contestants import Contestant
from dovetail.metrics.race.race_statistics import (
    Estimate,
    ReferenceConvergence,
    bootstrap,
    olympic_mean,
    reference_convergence,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SpeedUp:
    """How many times as fast a contestant is as the reference, by a clock: `total` is the product of

    - `systems`: seconds a step of the reference over those of the contestant, waiting for batches included;
    - `statistical`: steps to the target of the reference over those of the contestant;
    - `other`: what is left, of compiling, evaluating, saving and interruptions.

    `convergence` is what the reference's runs allow (None where there are too few), and `verdict` what that says of the
    contestant's steps.
    """

    reference: str
    contestant: str
    clock: str
    total: Estimate
    systems: Estimate
    statistical: Estimate
    other: Estimate
    convergence: ReferenceConvergence | None = None
    verdict: str = ""

    def sentence(self) -> str:
        """What it comes to, in words."""
        parts = f"{self.systems}× by seconds a step, {self.statistical}× by steps, {self.other}× by the rest"
        return f"{self.contestant} is {self.total}× as fast as {self.reference}: {parts}."


def compare_contestants(reference: Contestant, other: Contestant, *, clock: str) -> SpeedUp:
    """Compare a contestant with the reference, by a clock."""
    groups = [[(run.seconds(clock), run.steps, run.step_seconds) for run in each.runs] for each in (reference, other)]
    convergence = reference_convergence([run.steps for run in reference.runs], runs=len(other.runs))
    return SpeedUp(
        reference=reference.name,
        contestant=other.name,
        clock=clock,
        total=bootstrap(groups, _total),
        systems=bootstrap(groups, _systems),
        statistical=bootstrap(groups, _statistical),
        other=bootstrap(groups, lambda drawn: _ratio(_total(drawn), _systems(drawn) * _statistical(drawn))),
        convergence=convergence,
        verdict=_verdict(convergence, olympic_mean([run.steps for run in other.runs])),
    )


Runs = Sequence[Sequence[tuple[float, float, float]]]
"""The seconds, the steps and the seconds a step of each run, of both contestants."""


def _total(drawn: Runs) -> float:
    return _ratio(*(olympic_mean([seconds for seconds, _, _ in runs]) for runs in drawn))


def _statistical(drawn: Runs) -> float:
    return _ratio(*(olympic_mean([steps for _, steps, _ in runs]) for runs in drawn))


def _systems(drawn: Runs) -> float:
    # A run that never arrived has taken steps all the same; one that took none is NaN.
    return _ratio(*(olympic_mean([each for _, _, each in runs if each == each]) for runs in drawn))


def _ratio(reference: float, other: float) -> float:
    """NaN where both are infinite: nothing is known then."""
    return reference / other if other else math.nan


def _verdict(convergence: ReferenceConvergence | None, mean: float) -> str:
    if convergence is None:
        return (
            "the test of reference convergence must have at least four runs of the reference, of which at most one "
            "never arrives, and three of the other"
        )
    reference = f"the reference's {convergence.mean:.4g}"
    match convergence.judge(mean):
        case "too fast":
            return (
                f"{mean:.4g} steps are fewer than {convergence.least:.4g}, the fewest that chance allows beside "
                f"{reference}: it converges faster (at 0.05)"
            )
        case "within":
            return (
                f"{mean:.4g} steps are fewer than {reference}, but not fewer than the {convergence.least:.4g} that "
                f"chance allows: MLPerf would multiply its time by {convergence.factor(mean):.4g}"
            )
        case _:
            told = "never arriving on average is" if math.isinf(mean) else f"{mean:.4g} steps are"
            return f"{told} no fewer than {reference}: it does not converge faster"
