"""Nodes as they are, on real Ray nodes of this machine.

- `gangs`: four ranks on one node, two and four learn the same bits (`nodes_gangs`).
- `come-and-go`: a sweep begins on one node and is joined by two, of which one leaves with a notice and one vanishes.
  How long it takes, next to what is possible on the nodes as they came and went (`dovetail simulate --replay`), and
  whether every task has learned what it learns alone. Steps sleep for a tenth of a second and compute for a few
  thousandths, since all nodes share this machine's cores: what is judged is how soon nodes are used and emptied, and
  what is lost with them; the second bar leaves out how much slower others on the machine made the steps.
- `spend`: a daemon that rents by a day of prices, next to what the simulation says that costs (`nodes_spend`).

`python bench/nodes.py [gangs] [come-and-go] [spend] [--check] [--quick]`
"""

import argparse
import concurrent.futures
import dataclasses
import multiprocessing
import os
import secrets
import tempfile
import time
from pathlib import Path
from typing import Any

from nodes_gangs import compare_gangs
from nodes_spend import rent
from reporting import Bar, finish

import dovetail as dt
from dovetail import describe
from dovetail.control import Controller, Settings
from dovetail.control.simulation.node_replay import replay_nodes
from dovetail.engines.ray import RayEngine, connected, survey
from dovetail.engines.ray.connection import OBJECT_STORE_BYTES
from dovetail.metrics.attendance import node_of
from dovetail.store import Store
from dovetail.vocabulary import Workload

PROGRAM = str(Path(__file__).with_name("nodes_program.py")) + ":paced"
NODE = {"num_cpus": 1, "object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """What is trained, and how long a notice is."""

    tasks: int = 12
    steps: int = 300
    step_seconds: float = 0.1
    notice_seconds: float = 20.0


QUICK = Case(tasks=5, steps=500, step_seconds=0.01, notice_seconds=6.0)


def main() -> int:
    """Run those that are asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", choices=[*PARTS, []], help=", ".join(PARTS))
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    bars: list[Bar] = []
    for part in arguments.parts or PARTS:
        with tempfile.TemporaryDirectory(prefix="dovetail-nodes-") as folder:
            # In a process of its own: one reads Ray's token once.
            context = multiprocessing.get_context("spawn")
            with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as apart:
                found = apart.submit(PARTS[part], Path(folder), quick=arguments.quick).result()
        rows, bars = [*rows, *found[0]], [*bars, *found[1]]
    return finish("nodes", rows, bars, check=arguments.check, quick=arguments.quick, part_by="of")


def sweep(case: Case, *, seconds: float) -> Workload:
    """The tasks."""
    seeds = list(range(case.tasks))
    found = describe.grid(PROGRAM, seed=seeds, seconds=[seconds], steps=case.steps)
    assert isinstance(found, Workload)
    return dataclasses.replace(found, techniques=("resident",))


def come_and_go(folder: Path, *, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """The sweep on nodes that come and go, and next to it what was possible."""
    case = QUICK if quick else Case()
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0"}
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112, as Ray spells it; what is timed does not yield
    from ray.cluster_utils import Cluster as RayCluster  # reads the environment

    impatient = {"health_check_period_ms": 1000, "health_check_failure_threshold": 4}
    machines = RayCluster(initialize_head=True, head_node_args={**NODE, "_system_config": impatient})
    home = folder / "store"
    home.mkdir(mode=0o700)
    try:
        with connected(machines.address, programs=[describe.program(PROGRAM)], home=home):
            norms, replay = _train(case, machines, home)
    finally:
        machines.shutdown()
    alone = dt.run(sweep(case, seconds=0.0), store=folder / "alone", settings=Settings(exact=True), progress=False)
    expected = {_seed(task.name): task.metrics["norm"] for task in alone.tasks}
    row = {
        "of": "come-and-go",
        "tasks": case.tasks,
        "nodes": replay.nodes,
        "seconds": replay.real_seconds,
        "possible_seconds": replay.possible_seconds,
        "over": replay.over,
        "paced_seconds": replay.paced_seconds,
        "over_paced": replay.over_paced,
        "inexact": sum(norms[seed] != expected[seed] for seed in expected),
    }
    return [row], [
        Bar("come-and-go, seconds over what was possible", row["over"], most=1.1),
        Bar("come-and-go, seconds over what was possible with steps as slow as they were", row["over_paced"], most=1.1),
        Bar("come-and-go, tasks that did not learn what they learn alone", row["inexact"], most=0),
        Bar("come-and-go, nodes that came and went", row["nodes"], least=3),
    ]


def _train(case: Case, machines: Any, home: Path) -> tuple[dict[str, float], Any]:
    cluster, numbers = survey(home)
    engine = RayEngine(cluster, nodes=numbers, home=home)
    with Store(home, write=True) as store:
        controller = Controller(
            sweep(case, seconds=case.step_seconds),
            cluster=cluster,
            store=store,
            engine=engine,
            settings=Settings(save_every_seconds=2.0, exact=True),
            observe=_History(case, machines),
        )
        try:
            controller.reconcile()
            controller.run()
        finally:
            engine.close()
        norms = {_seed(controller.tasks[task].name): one.metrics["norm"] for task, one in controller.progress.items()}
        return norms, replay_nodes(store)


def _seed(name: str) -> int:
    return int(name.partition("seed=")[2].split()[0].rstrip(","))


class _History:
    """What happens to the nodes, each once what came before was taken up."""

    def __init__(self, case: Case, machines: Any) -> None:
        self._case, self._machines, self._nodes, self._stage = case, machines, list[Any](), 0

    def __call__(self, controller: Controller) -> None:
        running = [one for one in controller.progress.values() if one.status == "running"]
        train = {node_of(one.spans[-1].devices[0]) for one in running if one.step}
        done = sum(one.status == "finished" for one in controller.progress.values())
        if self._stage == 0 and train:
            self._stage, self._nodes = 1, [self._machines.add_node(**NODE) for _ in range(2)]
        elif self._stage == 1 and len(train) == 3 and done >= self._case.tasks // 3:
            self._stage = 2
            self._drain(self._nodes[0])
        elif self._stage == 2 and len(train) == 2 and done >= self._case.tasks // 2:
            self._stage = 3
            self._machines.remove_node(self._nodes[1], allow_graceful=False)

    def _drain(self, node: Any) -> None:
        import ray
        from ray._raylet import GcsClient
        from ray.core.generated import autoscaler_pb2

        reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        until = int((time.time() + self._case.notice_seconds) * 1000)
        client = GcsClient(address=ray.get_runtime_context().gcs_address)
        client.drain_node(node.node_id, reason, "reclaimed", until)


PARTS = {"gangs": compare_gangs, "come-and-go": come_and_go, "spend": rent}

if __name__ == "__main__":
    raise SystemExit(main())
