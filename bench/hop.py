"""Models that hop over shards (Cerebro), against data-parallel over the nodes and task-parallel with remote reading.

Nodes are Ray nodes on this machine, each with one device, one shard and a label. Each has a port that passes only so
many bytes a second each way, whatever the number of its connections (`limited_link`, real sockets): a task's state goes
through it at every save and load, and so does a shard that is read from another node. Steps sleep, since all nodes
share this machine's cores, so that what is compared is the moving and the waiting. Hopping and reading remotely are
`dt.run` on Ray; data-parallel is a ring of sockets that passes what an all-reduce of every step's gradients passes, for
some steps, and is scaled up.

`python bench/hop.py [--check] [--quick] [--ours]`; with `--ours`, the rivals are not run again, and nothing is kept.
"""

import argparse
import concurrent.futures
import dataclasses
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from hop_program import read
from limited_link import NODE, LimitedLink, ask
from nemesis import RayNodes
from reporting import Bar, finish

import dovetail as dt
from dovetail.planning.hopping import HopLink, OpenShop, ShopDevice, Tour, check_tours, plan_tours
from dovetail.train import RESIDENT, SessionMember, checkpoint
from dovetail.vocabulary import Workload

PROGRAM = str(Path(__file__).with_name("hop_program.py")) + ":model"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """What is trained, and over which links."""

    models: int = 16
    nodes: int = 4
    steps: int = 50
    step_seconds: float = 0.05
    parameters: int = 250_000
    shard_bytes: int = 48 << 20
    bytes_per_second: float = 8e6
    data_parallel_steps: int = 20


QUICK = Case(models=4, nodes=2, steps=10, step_seconds=0.02, shard_bytes=1 << 20, data_parallel_steps=3)


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--ours", action="store_true")
    arguments = parser.parse_args()
    case = QUICK if arguments.quick else Case()
    with tempfile.TemporaryDirectory(prefix="dovetail-hop-") as folder:
        rows, bars = compare(case, Path(folder), rivals=not arguments.ours)
    rows.append(planned(100, 32))
    bars.append(Bar("100 models on 32 shards, gap to the bound", rows[-1]["gap"], most=0.03))
    bars.append(Bar("100 models on 32 shards, CPU seconds of planning", rows[-1]["seconds"], most=10.0))
    return finish("hop", rows, bars, check=arguments.check, quick=arguments.quick or arguments.ours)


def compare(case: Case, folder: Path, *, rivals: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """The three ways of training the same models, or without `rivals` ours."""
    shards = [folder / f"shard-{number}.pt" for number in range(case.nodes)]
    for number, path in enumerate(shards):
        torch.save(content(case, number), path)
    link = LimitedLink(case.bytes_per_second)
    place = RayNodes(nodes=case.nodes, label="shard", variable=NODE)
    try:
        link.files |= {path.name: path.read_bytes() for path in shards}
        hopping, store, bound = hop(case, shards, link, place, folder)
        assert link.nodes() >= set(map(str, range(case.nodes))), "every node must have a port of its own"
        exact = compare_weights(case, shards, store)
        others = {}
        if rivals:
            others["task-parallel, remote reading"] = read_remotely(case, shards, link, place, folder)
            others["data-parallel over the nodes (scaled from some steps)"] = data_parallel(case, link)
    finally:
        place.close()
        link.close()
    by_steps, by_plan = sub_epochs(store, "step", "data"), promised(store)
    row = {
        "way": "hop",
        "seconds": hopping,
        "bound_seconds": bound,
        "gap": hopping / bound - 1,
        "plan_bound_seconds": by_plan,
        "sub_epochs_bound_seconds": by_steps,
        "gap_to_steps_without_reading": hopping / sub_epochs(store, "step") - 1,
        "bit_equal": exact,
    }
    bars = [
        Bar("hop over the bound that its plan promised", hopping / by_plan - 1, most=0.08),
        Bar("hop over the bound of its sub-epochs", hopping / by_steps - 1, most=0.08),
        Bar("models that differ from one-device SGD over the same order", float(case.models - exact), most=0),
    ]
    if others:
        best = min(others.values())
        bars.insert(0, Bar("the better of the others over hop, times", best / hopping, least=2.5))
    return [row, *({"way": way, "seconds": seconds} for way, seconds in others.items())], bars


def content(case: Case, number: int) -> dict[str, torch.Tensor]:
    """A shard: its batches, and what else makes it as large as it is."""
    generator = torch.Generator().manual_seed(number)
    batches = torch.randn(case.steps, 8, 16, generator=generator)
    return {"batches": batches, "rest": torch.zeros(case.shard_bytes, dtype=torch.uint8)}


def sweep(case: Case, places: list[list[list[str]]], name: str) -> Workload:
    """The models, each with its places."""
    fields = {"batches": case.steps, "step_seconds": case.step_seconds, "parameters": case.parameters}
    tasks = [
        dt.task(PROGRAM, name=f"model {n}", places=each, rate=0.01 * (n + 1), seed=n, epochs=1, **fields)
        for n, each in enumerate(places)
    ]
    return dt.workload(tasks, name=name)


def train(workload: Workload, link: LimitedLink, place: RayNodes, store: Path) -> dt.Result:
    """The product's own command for it."""
    settings = dt.Settings(checkpoints=f"{link.url}/{store.name}", exact=True)
    return dt.run(
        workload,
        engine="ray",
        address=place.options[-1],
        store=store,
        settings=settings,
        techniques=["resident", "hop"],
    )


def taken(store: Path) -> float:
    """From the first start of a training to the last end, saved."""
    from dovetail.store import Store

    with Store(store) as opened:
        events = [event for _, event in opened.events()]
    began = min(event.at_seconds for event in events if event.kind == "started")
    return max(event.at_seconds for event in events if event.kind in ("finished", "saved")) - began


def sub_epochs(store: Path, *words: str) -> float:
    """The open shop's bound by what the sub-epochs of this very run took, of the busiest device or of the longest tour:
    steps, and reading their batches where both `words` are given. Building, loading, saving, moving and waiting are not
    in it. A trial's figure would not do beside other work."""
    from dovetail.store import Store

    devices: Counter[str] = Counter()
    tasks: Counter[str] = Counter()
    with Store(store) as opened:
        events = [event for _, event in opened.events()]
    task_of = {event.placement: event.task for event in events if event.kind == "started"}
    for event in events:
        if event.kind == "released" and event.placement in task_of:
            seconds = sum(event.seconds.get(word, 0.0) for word in words)
            devices[event.devices[0]] += seconds
            tasks[task_of[event.placement]] += seconds
    return max(*devices.values(), *tasks.values())


def promised(store: Path) -> float:
    """The bound of the first plan that has all visits, as the product proved it."""
    from dovetail.store import Store

    with Store(store) as opened:
        return max(event.bound_seconds for _, event in opened.events() if event.kind == "planned")


def hop(case: Case, shards: list[Path], link: LimitedLink, place: RayNodes, folder: Path) -> tuple[float, Path, float]:
    """How long hopping takes, its store, and the bound of computing alone: what saving, loading and starting take is
    part of the gap to it."""
    places = [[[str(path), f"shard={number}"] for number, path in enumerate(shards)]] * case.models
    store = folder / "hop"
    train(sweep(case, places, "hop"), link, place, store)
    seconds = {f"s{n}": {f"n{n}:0": case.steps * case.step_seconds} for n in range(case.nodes)}
    tours = tuple(Tour(task=f"t{n}", epochs=(tuple(seconds),), visit_seconds=seconds) for n in range(case.models))
    devices = tuple(ShopDevice(name=f"n{n}:0", node=f"n{n}") for n in range(case.nodes))
    return taken(store), store, plan_tours(OpenShop(devices=devices, tours=tours)).bound_seconds


def read_remotely(case: Case, shards: list[Path], link: LimitedLink, place: RayNodes, folder: Path) -> float:
    """Each task stays on a node, whose own shard it reads there, and reads the others through the link."""
    places = [
        [
            [str(path) if number == n % case.nodes else f"{link.url}/{path.name}", ""]
            for number, path in enumerate(shards)
        ]
        for n in range(case.models)
    ]
    store = folder / "remote"
    train(sweep(case, places, "remote"), link, place, store)
    return taken(store)


def data_parallel(case: Case, link: LimitedLink) -> float:
    """All models one after another, each step of each divided over the nodes, whose gradients pass a ring."""
    gradient_bytes = int(2 * (case.nodes - 1) / case.nodes * 4 * case.parameters)
    passed, ring = bytes(gradient_bytes), list(map(str, range(case.nodes)))
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(case.nodes) as nodes:
        for _ in range(case.data_parallel_steps):
            time.sleep(case.step_seconds / case.nodes)
            list(nodes.map(lambda node: ask("put", f"{link.url}/ring/{node}", passed, node=node), ring))
    step_seconds = (time.monotonic() - began) / case.data_parallel_steps
    return step_seconds * case.models * case.nodes * case.steps


def compare_weights(case: Case, shards: list[Path], store: Path) -> int:
    """How many models are, to the bit, what one device learns over the same order of shards."""
    from hop_program import model

    from dovetail.store import Store, checkpoints_of

    with Store(store) as opened:
        chosen = {event.task: event.orders for _, event in opened.events() if event.kind == "order_chosen"}
        tasks = [task for _, task in opened.tasks()]
    equal = 0
    for task in tasks:
        training = model(**{**task.parameters, "step_seconds": 0.0})
        training.batches = [batch for name in chosen[task.identity][0] for batch in read(str(shards[int(name[1:])]))]
        session = RESIDENT.open(
            [SessionMember(training=training, seed=task.seed)], device=torch.device("cpu"), threads=1
        )
        for _ in range(case.nodes * case.steps):
            session.advance()
        state, _ = checkpoint.recover(checkpoints_of(store) / task.identity)
        assert state is not None
        mine = session.state().tensors
        equal += all(torch.equal(tensor, state.tensors[name]) for name, tensor in mine.items())
    return equal


def planned(models: int, shards: int) -> dict[str, Any]:
    """A large shop, planned only."""
    sizes = torch.rand(models, generator=torch.Generator().manual_seed(0)).tolist()
    speeds = torch.rand(shards, generator=torch.Generator().manual_seed(1)).tolist()
    devices = tuple(ShopDevice(name=f"n{n}:0", node=f"n{n}") for n in range(shards))
    tours = tuple(
        Tour(
            task=f"t{number}",
            epochs=(tuple(f"s{n}" for n in range(shards)),),
            visit_seconds={f"s{n}": {f"n{n}:0": (10 + 90 * size) * (1 + speeds[n] / 2)} for n in range(shards)},
            state_bytes=1 << 30,
        )
        for number, size in enumerate(sizes)
    )
    shop = OpenShop(devices=devices, tours=tours, link=HopLink(bytes_per_second=1e9))
    began = time.process_time()
    found = plan_tours(shop)
    seconds = time.process_time() - began
    check_tours(found, shop)
    way = f"plan of {models} models on {shards} shards (CPU seconds)"
    return {"way": way, "seconds": seconds, "bound_seconds": found.bound_seconds, "gap": found.gap}


if __name__ == "__main__":
    raise SystemExit(main())
