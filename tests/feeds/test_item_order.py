"""Orders: every item once in an epoch, any part found without the rest, another one in each epoch."""

from hypothesis import given
from hypothesis import strategies as st

from dovetail.feeds.item_order import ItemOrder, shuffled_stream


@given(
    length=st.integers(1, 60),
    windows=st.lists(st.integers(1, 70), max_size=2),
    seed=st.integers(0, 5),
    epoch=st.integers(0, 3),
    data=st.data(),
)
def test_every_item_stands_once_and_parts_are_parts(length, windows, seed, epoch, data):
    order = ItemOrder(windows=windows, seed=seed)
    whole = order.indices(epoch, 0, length, length=length)
    assert sorted(whole) == list(range(length))
    start = data.draw(st.integers(0, length))
    stop = data.draw(st.integers(start, length))
    assert ItemOrder(windows=windows, seed=seed).indices(epoch, start, stop, length=length) == whole[start:stop]
    stream = list(shuffled_stream(iter(range(length)), order, epoch))
    assert sorted(stream) == [(number, number) for number in range(length)]


@given(length=st.integers(1, 200), window=st.integers(1, 20))
def test_items_stay_within_their_window(length, window):
    found = ItemOrder(windows=[window], seed=1).indices(0, 0, length, length=length)
    assert all(abs(place - number) < window for place, number in enumerate(found)) or window >= length


def test_epochs_and_seeds_differ_and_repeat():
    orders = {
        (seed, epoch): tuple(ItemOrder(windows=[1000], seed=seed).indices(epoch, 0, 100, length=100))
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(set(orders.values())) == 9
    # Kept as it is: checkpoints stand somewhere in it.
    assert ItemOrder(windows=[10], seed=0).indices(0, 0, 10, length=10) == [3, 9, 4, 2, 8, 1, 7, 0, 5, 6]
