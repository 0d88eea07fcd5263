"""Waiting, spot and on demand, weighed by what they lead to."""

import numpy as np
import pytest

from dovetail.planning.market.value_table import ON_DEMAND, SPOT, WAIT, ValueTables, value_tables


def tables(**changed: float) -> ValueTables:
    usual = {
        "work": 0.5,
        "move": 0.005,
        "lost": 0.001,
        "stays": 0.1,
        "away": 0.1,
        "price": 0.3,
        "speed": 1.0,
        **changed,
    }
    single = ("work", "move", "lost")
    return value_tables(**{k: v if k in single else np.array([v]) for k, v in usual.items()})


def ask(table: ValueTables, *, left: float = 1.0, slack: float, where: int, offered: bool) -> int:
    one = np.array([slack])
    return int(table.look_up(np.array([0]), np.array([left]), one, np.array([where]), np.array([offered]))[0])


def test_without_slack_on_demand_to_the_end() -> None:
    for where in (WAIT, ON_DEMAND):
        for offered in (False, True):
            assert ask(tables(), left=0.5, slack=0.001, where=where, offered=offered) == ON_DEMAND


def test_with_slack_cheap_spot_is_taken_and_waited_for() -> None:
    assert ask(tables(), slack=0.5, where=WAIT, offered=True) == SPOT
    assert ask(tables(), slack=0.5, where=SPOT, offered=True) == SPOT
    assert ask(tables(), slack=0.5, where=WAIT, offered=False) == WAIT


def test_spot_that_never_lasts_a_move_is_left_alone() -> None:
    fleeting = tables(stays=0.0005, away=0.5)
    assert ask(fleeting, slack=0.05, left=0.55, where=ON_DEMAND, offered=True) == ON_DEMAND


@pytest.mark.parametrize("price", [0.99, 1.5])
def test_spot_that_saves_less_than_a_move_is_left_alone(price: float) -> None:
    assert ask(tables(price=price), slack=0.2, left=0.7, where=ON_DEMAND, offered=True) == ON_DEMAND


def test_slack_is_spent_over_the_time_not_all_at_its_beginning() -> None:
    """Where spot is away for long, on demand begins before the slack is gone, to have some when spot comes."""
    rare = tables(work=0.9, stays=0.1, away=0.2)
    assert ask(rare, slack=0.03, left=0.9, where=WAIT, offered=False) == ON_DEMAND
    assert ask(rare, slack=0.03, left=0.9, where=ON_DEMAND, offered=True) == SPOT
