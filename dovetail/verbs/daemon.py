"""The verb behind `dovetail daemon`: a controller that stays."""

import contextlib
import difflib
from collections.abc import Callable
from pathlib import Path

from dovetail.control import Decider, Settings, standing
from dovetail.control.deciding.sharing import Sharing
from dovetail.engines import detect
from dovetail.planning.share.policies import POLICIES
from dovetail.verbs.verbs import Observer, controlling
from dovetail.vocabulary import Cluster, DovetailError, Entity, Objective


def daemon(
    *,
    cluster: Cluster | None = None,
    store: str | Path = ".dovetail",
    settings: Settings | None = None,
    policy: str = "max_min_fairness",
    shared_by: tuple[Entity, ...] = (),
    round_seconds: float = 60.0,
    objective: str | None = None,
    port: int | None = None,
    progress: bool = True,
    listening: Callable[[str], None] = lambda where: None,
) -> None:
    """Take tasks on as they are submitted to this store, until a stop is asked for. Started again, goes on.

    Devices are shared by `policy` in rounds of `round_seconds`, where it asks for that between the entities that they
    are `shared_by`; one that is not among these weighs 1. With an `objective`, by one schedule for all that is
    there, made anew as things change, in which what runs does not leave for what comes. `listening` is told where it
    takes commands, once it does.
    """
    if objective is not None:
        Objective.parse(objective)
    decider = sharing(policy, round_seconds, entities=shared_by) if objective is None else None
    with contextlib.ExitStack() as stack:
        observe: Observer | None = None
        if progress:
            from dovetail.verbs.live import Live

            observe = stack.enter_context(Live())
        controller = stack.enter_context(
            controlling(
                lambda opened: standing(opened, objective=objective or "weighted"),
                cluster=cluster or detect(),
                home=Path(store),
                settings=settings or Settings(),
                observe=observe or (lambda controller: None),
                decider=decider,
                port=port,
                listening=listening,
            )
        )
        controller.reconcile()
        controller.measure()
        controller.run()


def sharing(policy: str, round_seconds: float, *, entities: tuple[Entity, ...] = ()) -> Decider:
    """The way of deciding by the policy of this name.

    >>> sharing("max_min_fairness", 60.0).round_seconds
    60.0
    """
    if policy not in POLICIES:
        near = difflib.get_close_matches(policy, POLICIES, 1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise DovetailError(f"policy must be one of {sorted(POLICIES)}, got {policy!r}{hint}")
    return Sharing(policy=POLICIES[policy], round_seconds=round_seconds, prompt=True, entities=entities)
