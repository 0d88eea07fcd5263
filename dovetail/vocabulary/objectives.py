"""What a plan is to make small, as people write it."""

import dataclasses
import difflib
import math

from dovetail.vocabulary.errors import InvalidRecord
from dovetail.vocabulary.units import parse_seconds, show_seconds

#: The form of each objective, with an example of what it needs beyond its name.
OBJECTIVES = {
    "makespan": "makespan",
    "mean": "mean",
    "weighted": "weighted",
    "first": "first:3",
    "spend": "spend:deadline=2h",
    "target": "target:chance=0.2",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What a schedule is judged by; less is better.

    - `makespan`: when the last task ends. `mean`: when a task ends, on average. `weighted`: the same, by weights.
    - `first:3`: when three tasks have ended, whichever they are.
    - `spend:deadline=2h`: the price of all device time in use, where everything ends by the deadline.
    - `target:chance=0.2`: when a task first meets the target, as expected, where each does with this chance and
      independently, and knows at its end; then the others need not go on. Where none does, that is known at the last.

    >>> Objective.parse("first:3").results, str(Objective.parse("spend:deadline=2h"))
    (3, 'spend:deadline=7200s')
    """

    name: str = "makespan"
    results: int = 0
    deadline_seconds: float = 0.0
    chance: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in OBJECTIVES:
            near = difflib.get_close_matches(self.name, OBJECTIVES, n=1)
            # Written where people look first; money is called spend here.
            meant = "spend" if self.name == "cost" else near[0] if near else ""
            hint = f"; did you mean {OBJECTIVES[meant]!r}?" if meant else "."
            raise InvalidRecord(f"objective must be one of {list(OBJECTIVES.values())}, got {self.name!r}{hint}")
        needs = {
            "first": ("results", "a number of results of at least 1", self.results >= 1),
            "spend": ("deadline_seconds", "a deadline later than now", 0 < self.deadline_seconds < math.inf),
            "target": ("chance", "a chance above 0 and below 1", 0 < self.chance < 1),
        }
        for name, (field, what, holds) in needs.items():
            if name == self.name and not holds:
                example, found = OBJECTIVES[name], getattr(self, field)
                raise InvalidRecord(f"objective {name!r} must have {what}, as in {example!r}, got {found}.")
            if name != self.name and getattr(self, field) != 0:
                raise InvalidRecord(f"{field} belongs to objective {name!r}, got it with {self.name!r}.")

    @staticmethod
    def parse(text: str) -> "Objective":
        """The objective that is written so.

        >>> Objective.parse("target:chance=0.2").chance
        0.2
        """
        name, colon, value = text.strip().partition(":")
        if not colon or name not in OBJECTIVES:
            return Objective(name=name)
        label, equals, given = value.partition("=")
        try:
            if name == "first" and not equals:
                return Objective(name=name, results=int(value))
            if name == "spend" and label == "deadline":
                return Objective(name=name, deadline_seconds=parse_seconds(given))
            if name == "target" and label == "chance":
                return Objective(name=name, chance=float(given))
        except InvalidRecord:
            raise
        except ValueError as error:
            raise InvalidRecord(
                f"objective {name!r} must be written as {OBJECTIVES[name]!r}, got {text!r}: {error}"
            ) from None
        raise InvalidRecord(f"objective {name!r} must be written as {OBJECTIVES[name]!r}, got {text!r}.")

    def show(self, value: float) -> str:
        """A value of it as people read it.

        >>> Objective.parse("mean").show(90.0), Objective.parse("spend:deadline=2h").show(1234.5)
        ('1 min 30 s', '1,234.50')
        """
        return f"{value:,.2f}" if self.name == "spend" else show_seconds(value)

    def __str__(self) -> str:
        values = {
            "first": f":{self.results}",
            "spend": f":deadline={self.deadline_seconds:g}s",
            "target": f":chance={self.chance:g}",
        }
        return self.name + values.get(self.name, "")
