"""Every second of every device is somebody's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.metrics.account import CAUSES, account
from dovetail.vocabulary import FrozenDict
from dovetail.vocabulary.events import DevicesReleased


def order(start: float, end: float, *devices: str, purpose: str = "train", **seconds: float) -> DevicesReleased:
    return DevicesReleased(
        at_seconds=end,
        placement=f"{start}",
        duration_seconds=end - start,
        purpose=purpose,
        devices=devices,
        seconds=FrozenDict(seconds),
    )


spent = st.dictionaries(
    st.sampled_from(["step", "data", "saving", "building", "importing", "humming"]), st.floats(0, 9)
)


@given(
    st.lists(
        st.tuples(st.floats(0, 50), st.floats(0.1, 9), st.sampled_from(["fingerprint", "measure", "train"]), spent)
    ),
    st.lists(st.floats(0, 80), max_size=3),
)
def test_causes_add_up_to_the_whole(
    parts: list[tuple[float, float, str, dict[str, float]]], moments: list[float]
) -> None:
    # One order at a time on a device.
    at, orders = 0.0, []
    for gap, length, purpose, seconds in parts:
        orders.append(order(at + gap, at + gap + length, "n0:0", purpose=purpose, **seconds))
        at += gap + length
    found = account(orders, devices=2, moments=moments)
    assert set(found.seconds) <= set(CAUSES)
    assert all(value >= -1e-9 for value in found.seconds.values())
    assert sum(found.seconds.values()) == pytest.approx(2 * found.whole_seconds)
    assert sum(map(found.share, CAUSES)) == pytest.approx(1.0 if orders else 0.0)


def test_waiting_for_data_is_a_cause_of_its_own() -> None:
    found = account([order(0, 4, "n0:0", step=3, data=1)], devices=1)
    assert found.seconds["training"] == 3
    assert found.share("waiting for data") == 0.25


def test_what_is_done_for_trials_and_fingerprints_is_theirs_but_for_imports() -> None:
    found = account(
        [
            order(0, 4, "n0:0", purpose="fingerprint", importing=3, reading=1),
            order(4, 6, "n0:0", purpose="measure", building=1, step=1),
            order(6, 10, "n0:0", building=1, step=2, evaluating=0.5, saving=0.5),
        ],
        devices=1,
    )
    assert found.seconds == {
        "importing": 3,
        "building": 2,
        "trials": 2,
        "training": 2,
        "evaluating": 0.5,
        "saving": 0.5,
        "handing over": 0,
        "deciding": 0,
        "idle": 0,
    }


def test_time_without_any_order_is_the_controllers_and_beside_others_idle() -> None:
    found = account([order(2, 5, "n0:0", step=3), order(6, 8, "n0:1", step=2)], devices=2, moments=[0, 9])
    assert found.seconds["deciding"] == 2 * (2 + 1 + 1)
    assert found.seconds["idle"] == 3 + 2


def test_the_pause_between_two_runs_does_not_count() -> None:
    found = account([order(0, 5, "n0:0", step=5), order(1000, 1005, "n0:0", step=5)], devices=1)
    assert found.whole_seconds == 10
    assert found.share("training") == 1.0


def test_stores_of_before_have_no_account() -> None:
    old = DevicesReleased(at_seconds=5.0, placement="p", duration_seconds=5.0)
    assert account([old], devices=1).seconds == {}


def test_pairs_that_show_what_approximations_cost_are_a_cause_of_their_own() -> None:
    found = account([order(0, 4, "a", purpose="guard", step=3.0, building=1.0), order(4, 9, "a", step=5.0)], devices=1)
    assert found.seconds["guarding"] == pytest.approx(4.0)
    assert found.seconds["training"] == pytest.approx(5.0)
