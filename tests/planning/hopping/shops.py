"""Open shops to plan, and the slow and true way to plan the smallest of them."""

import numpy as np
from hypothesis import strategies as st

from dovetail.planning.hopping import HopLink, OpenShop, ShardCopy, ShopDevice, Tour


def even_shop(tasks: int, shards: int, *, seed: int = 0, state_seconds: float = 0.0, ordered: bool = False) -> OpenShop:
    """Unlike models over as many nodes of unlike speed as there are shards, one shard on each."""
    generator = np.random.default_rng(seed)
    speeds, sizes = 1 + generator.random(shards) / 2, 1 + 9 * generator.random(tasks)
    return OpenShop(
        devices=tuple(ShopDevice(name=f"n{n}:0", node=f"n{n}") for n in range(shards)),
        tours=tuple(
            Tour(
                task=f"t{number}",
                epochs=(tuple(f"s{int(shard)}" for shard in generator.permutation(shards)),),
                visit_seconds={f"s{n}": {f"n{n}:0": float(size * speed)} for n, speed in enumerate(speeds)},
                state_bytes=1000,
                is_ordered=ordered,
            )
            for number, size in enumerate(sizes)
        ),
        link=HopLink(latency_seconds=state_seconds),
    )


@st.composite
def shops(draw: st.DrawFn, *, most_visits: int = 24, copied: bool = False) -> OpenShop:
    """Any small shop: several devices a node, shards that lie in several places, epochs, orders, busy devices; with
    `copied`, shards that a node's first visitor copies there."""
    nodes = draw(st.integers(1, 3))
    devices = tuple(
        ShopDevice(name=f"n{n}:{d}", node=f"n{n}", free_seconds=draw(st.sampled_from([0.0, 0.0, 2.5])))
        for n in range(nodes)
        for d in range(draw(st.integers(1, 2)))
    )
    names = [device.name for device in devices]
    shards = [f"s{n}" for n in range(draw(st.integers(1, 3)))]
    copies = {
        shard: ShardCopy(seconds=draw(st.sampled_from([0.5, 3.0])), nodes=frozenset(draw(st.sets(st.just("n0")))))
        for shard in (shards if copied else ())
    }
    tours: list[Tour] = []
    for number in range(draw(st.integers(1, 4))):
        where = {
            shard: {
                name: draw(st.sampled_from([1.0, 1.5, 4.0]))
                for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
            }
            for shard in shards
        }
        epochs = tuple(tuple(draw(st.permutations(shards))) for _ in range(draw(st.integers(1, 2))))
        begun = tuple(list(epochs[0])[: draw(st.integers(0, len(shards)))])
        tour = Tour(
            task=f"t{number}",
            epochs=(begun, *epochs[1:]),
            visit_seconds=where,
            is_ordered=draw(st.booleans()),
            state_bytes=draw(st.sampled_from([0, 1, 3])),
            at=draw(st.sampled_from(["", *(device.node for device in devices)])),
            ready_seconds=draw(st.sampled_from([0.0, 1.0])),
            copied={shard: shard for shard in copies},
        )
        if sum(each.visits for each in (*tours, tour)) <= most_visits:
            tours.append(tour)
    link = HopLink(
        bytes_per_second=draw(st.sampled_from([0.5, 2.0])), latency_seconds=draw(st.sampled_from([0.0, 1.0]))
    )
    return OpenShop(devices=devices, tours=tuple(tours), link=link, copies=copies)


def shortest_tours(shop: OpenShop) -> float:
    """The least makespan. In the order of their starts, the visits of a best plan can each begin as early as its task
    and its device allow; so the best over all orders and devices of that rule is the best there is."""
    tours = {tour.task: tour for tour in shop.tours}
    nodes = {device.name: device.node for device in shop.devices}
    free = {device.name: device.free_seconds for device in shop.devices}
    state = {
        task: (tour.at, tour.ready_seconds, tuple(epoch for epoch in tour.epochs if epoch))
        for task, tour in tours.items()
    }
    best = [float("inf")]

    def search(makespan: float) -> None:
        if makespan >= best[0]:
            return
        if not any(epochs for _, _, epochs in state.values()):
            best[0] = makespan
            return
        for task, (at, ready, epochs) in list(state.items()):
            if not epochs:
                continue
            tour, epoch = tours[task], epochs[0]
            for shard in epoch[:1] if tour.is_ordered else epoch:
                rest = tuple(each for each in epoch if each != shard)
                left = (rest, *epochs[1:]) if rest else epochs[1:]
                for device, seconds in tour.visit_seconds[shard].items():
                    arrives = ready + shop.hop_seconds(tour.state_bytes, at, nodes[device])
                    before, end = free[device], max(free[device], arrives) + seconds
                    state[task], free[device] = (nodes[device], end, left), end
                    search(max(makespan, end))
                    state[task], free[device] = (at, ready, epochs), before

    search(0.0)
    return best[0]
