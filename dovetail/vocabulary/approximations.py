"""Other mathematics that users may allow by name: what each is, and what can have it. The one list of them.

Nothing here is chosen in silence: without its name among `Training.allow`, `Workload.allow` or `--allow` no task is
trained so. An option's knob `approximate` says which its steps are taken with. The recurrences are in docs/numeric.md.
"""

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from dovetail.vocabulary.errors import InvalidWorkload

KNOB = "approximate"
"""The knob of options, trials and orders that says with which approximations steps are taken; absent: exact."""

Approximate = str
"""Names of approximations, sorted and joined by '+'; empty: exact."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Approximation:
    """One of them: of what it `is`, in words; the torch `optimizers` that can have it (none: any); which part of a
    step it `concerns`, since two of the same part exclude each other. Techniques say themselves with which they can
    train. One that is not `planned` is a matter of one technique alone, which does it wherever it is allowed.
    `version` is that of its recurrence: a checkpoint of a newer one is refused.

    >>> APPROXIMATIONS["state-8bit"].concerns
    'state'
    """

    name: str
    is_what: str
    concerns: str
    optimizers: tuple[str, ...] = ()
    planned: bool = True
    version: int = 1


APPROXIMATIONS: dict[str, Approximation] = {
    each.name: each
    for each in (
        Approximation(
            name="attention-masks",
            is_what="masks of attention with dropout are drawn by fuse itself",
            concerns="masks",
            planned=False,
        ),
        Approximation(
            name="state-8bit",
            is_what="moments of the optimizer in 8 bits a number, blockwise",
            concerns="state",
            optimizers=("Adam", "AdamW", "SGD"),
        ),
        Approximation(
            name="state-bf16",
            is_what="moments of the optimizer in bf16, rounded by chance",
            concerns="state",
            optimizers=("Adam", "AdamW", "SGD"),
        ),
        Approximation(
            name="weights-bf16",
            is_what="weights that are read in bf16 kept in it alone, rounded by chance",
            concerns="weights",
            optimizers=("Adam", "AdamW", "SGD"),
        ),
        Approximation(
            name="fp8",
            is_what="products of large linear layers in 8 bits, rows with scales of their own",
            concerns="products",
        ),
        Approximation(
            name="gradients-bf16",
            is_what="gradients exchanged between copies in bf16",
            concerns="gradients",
        ),
        Approximation(
            name="gradients-lowrank",
            is_what="gradients exchanged between copies by few dimensions, what is left out later",
            concerns="gradients",
        ),
    )
}


def parse_allow(given: str | Iterable[str]) -> tuple[str, ...]:
    """Names of approximations, sorted. Raises `InvalidWorkload` for one that there is not.

    >>> parse_allow("state-8bit"), parse_allow(())
    (('state-8bit',), ())
    """
    texts = [given] if isinstance(given, str) else list(given)
    names = sorted({name.strip() for text in texts for name in str(text).split(",") if name.strip()})
    for name in names:
        if name not in APPROXIMATIONS:
            raise InvalidWorkload(
                f"an approximation to allow (--allow, allow=) must be one of {sorted(APPROXIMATIONS)}, got {name!r}."
            )
    return tuple(names)


def combinations(allowed: Collection[str]) -> tuple[Approximate, ...]:
    """The ways to train that these names allow beside the exact one: each, and those together that concern other parts
    of a step.

    >>> combinations({"state-8bit", "attention-masks"})
    ('state-8bit',)
    """
    names = [name for name in sorted(allowed) if APPROXIMATIONS[name].planned]
    sets = itertools.chain.from_iterable(itertools.combinations(names, count) for count in range(1, len(names) + 1))
    return tuple("+".join(each) for each in sets if len({APPROXIMATIONS[name].concerns for name in each}) == len(each))


def names_of(approximate: Approximate) -> tuple[str, ...]:
    """The names in a knob's value.

    >>> names_of("state-8bit"), names_of("")
    (('state-8bit',), ())
    """
    return tuple(approximate.split("+")) if approximate else ()


def split_knobs(knobs: Mapping[str, Any]) -> tuple[Approximate, dict[str, Any]]:
    """With which approximations knobs let a technique train, and the knobs that are the technique's own.

    >>> split_knobs({"approximate": "state-8bit", "microbatches": 2})
    ('state-8bit', {'microbatches': 2})
    """
    own = {name: value for name, value in knobs.items() if name != KNOB}
    return str(knobs.get(KNOB, "")), own


def join_knobs(approximate: Approximate, knobs: Mapping[str, Any]) -> dict[str, Any]:
    """The knobs of a technique that takes its steps with these approximations.

    >>> join_knobs("", {"microbatches": 2}), join_knobs("state-8bit", {})
    ({'microbatches': 2}, {'approximate': 'state-8bit'})
    """
    return {**knobs, KNOB: approximate} if approximate else dict(knobs)
