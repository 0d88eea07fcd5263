"""Approximations that a workload allows and a family cannot have: said once, so that nobody takes exact steps for
others."""

from dovetail.control.state import State
from dovetail.vocabulary import APPROXIMATIONS
from dovetail.vocabulary.events import Warned


class UnfitNames:
    """Looks at each family once, when it is known what its tasks can have."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._seen: set[str] = set()

    def check(self) -> None:
        """Warn of each name that the workload allows and that tasks of a family cannot have."""
        for task, one in self._state.known() if self._state.workload.allow else ():
            known = one.fingerprint
            if known is None or known.family in self._seen:
                continue
            self._seen.add(known.family)
            names = sorted({*self._state.workload.allow} - {*known.approximations})
            warnings = [Warned(at_seconds=self._state.now(), task=task, message=_say(name)) for name in names]
            if warnings:
                self._state.ledger.record(warnings)


def _say(name: str) -> str:
    """What it must have, and what is done without.

    >>> _say("fp8")
    "'fp8' is allowed, and a training like this cannot have it: its steps are taken without. docs/numeric.md says why."
    """
    optimizers = APPROXIMATIONS[name].optimizers
    wanted = f" (it is for {', '.join(optimizers)})" if optimizers else ""
    return (
        f"{name!r} is allowed, and a training like this cannot have it{wanted}: its steps are taken without. "
        f"docs/numeric.md says why."
    )
