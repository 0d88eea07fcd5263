"""What the bound knows of tours."""

import pytest

from dovetail.planning.hopping import HopLink, OpenShop, ShopDevice, Tour, shop_bound
from dovetail.vocabulary import InvalidRecord

WHERE = {"s0": {"n0:0": 1.0}, "s1": {"n1:0": 2.0}}
DEVICES = (ShopDevice(name="n0:0", node="n0"), ShopDevice(name="n1:0", node="n1"))


def test_a_tour_hops_at_least_once_less_than_it_has_nodes() -> None:
    tour = Tour(task="a", epochs=(("s0", "s1"),), visit_seconds=WHERE, state_bytes=10)
    assert shop_bound(OpenShop(devices=DEVICES, tours=(tour,), link=HopLink(bytes_per_second=5.0))) == 5.0


def test_an_order_may_ask_for_more_hops_than_any_would() -> None:
    epochs = (("s0", "s1"), ("s0", "s1"))
    bounds = [
        shop_bound(
            OpenShop(
                devices=DEVICES,
                tours=(Tour(task="a", epochs=epochs, visit_seconds=WHERE, is_ordered=ordered),),
                link=HopLink(latency_seconds=1.0),
            )
        )
        for ordered in (False, True)
    ]
    assert bounds == [8.0, 9.0]


def test_devices_that_are_busy_at_first_count() -> None:
    tours = tuple(Tour(task=name, epochs=(("s0",),), visit_seconds={"s0": {"a": 4.0, "b": 4.0}}) for name in "xyz")
    devices = (ShopDevice(name="a", node="n0", free_seconds=10.0), ShopDevice(name="b", node="n0"))
    # 12 s of work: 10 on the free one, and the rest divided.
    assert shop_bound(OpenShop(devices=devices, tours=tours)) == 11.0


def test_what_cannot_be_is_refused_by_name() -> None:
    with pytest.raises(InvalidRecord, match="must visit a shard once an epoch, got s0, s0"):
        Tour(task="a", epochs=(("s0", "s0"),), visit_seconds=WHERE)
    with pytest.raises(InvalidRecord, match="must have a device for shard 's2'"):
        Tour(task="a", epochs=(("s2",),), visit_seconds=WHERE)
    with pytest.raises(InvalidRecord, match="must be on devices of the shop"):
        OpenShop(devices=DEVICES[:1], tours=(Tour(task="a", epochs=(), visit_seconds=WHERE),))
    with pytest.raises(InvalidRecord, match="two share one"):
        OpenShop(devices=DEVICES[:1] * 2, tours=())
    with pytest.raises(InvalidRecord, match="more than 0 bytes a second"):
        HopLink(bytes_per_second=0.0)
