"""Dovetail: train many models on the accelerators you have.

Importing this loads no torch; names are fetched when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "CascadeClassifier": "dovetail.serve.cascades",
    "CascadeRegressor": "dovetail.serve.cascades",
    "Cluster": "dovetail.vocabulary",
    "DataShard": "dovetail.vocabulary",
    "DovetailError": "dovetail.vocabulary",
    "DriftDetector": "dovetail.watch.drift",
    "Halving": "dovetail.vocabulary",
    "Monitor": "dovetail.watch.streams",
    "Plan": "dovetail.vocabulary",
    "Population": "dovetail.vocabulary",
    "Result": "dovetail.control",
    "Scheduler": "dovetail.train",
    "Search": "dovetail.describe",
    "Selection": "dovetail.selection.record",
    "Session": "dovetail.verbs.session",
    "Settings": "dovetail.control",
    "ShardEvaluation": "dovetail.train",
    "Shards": "dovetail.feeds",
    "Stop": "dovetail.vocabulary",
    "Task": "dovetail.vocabulary",
    "Training": "dovetail.train",
    "TrainingError": "dovetail.vocabulary",
    "Workload": "dovetail.vocabulary",
    "cascade": "dovetail.verbs.make_cascade",
    "choice": "dovetail.describe",
    "connect": "dovetail.verbs.client",
    "detect": "dovetail.engines",
    "drift": "dovetail.watch.drift",
    "explain": "dovetail.watch.explain",
    "feed": "dovetail.feeds",
    "from_lightning": "dovetail.adapters",
    "from_trainer": "dovetail.adapters",
    "grid": "dovetail.describe",
    "incremental": "dovetail.serve.incremental",
    "integers": "dovetail.describe",
    "join": "dovetail.describe",
    "log_uniform": "dovetail.describe",
    "occlusion": "dovetail.serve.incremental",
    "open_result": "dovetail.control",
    "plan": "dovetail.verbs.make_plan",
    "race": "dovetail.verbs.race",
    "route": "dovetail.serve.routing",
    "run": "dovetail.verbs.run_workload",
    "run_daemon": "dovetail.verbs.daemon",
    "sample": "dovetail.describe",
    "search": "dovetail.verbs.run_search",
    "select": "dovetail.verbs.select_examples",
    "task": "dovetail.describe",
    "uniform": "dovetail.describe",
    "when": "dovetail.describe",
    "workload": "dovetail.describe",
}

__all__ = [
    "CascadeClassifier",
    "CascadeRegressor",
    "Cluster",
    "DataShard",
    "DovetailError",
    "DriftDetector",
    "Halving",
    "Monitor",
    "Plan",
    "Population",
    "Result",
    "Scheduler",
    "Search",
    "Selection",
    "Session",
    "Settings",
    "ShardEvaluation",
    "Shards",
    "Stop",
    "Task",
    "Training",
    "TrainingError",
    "Workload",
    "__version__",
    "cascade",
    "choice",
    "connect",
    "detect",
    "drift",
    "explain",
    "feed",
    "from_lightning",
    "from_trainer",
    "grid",
    "incremental",
    "integers",
    "join",
    "log_uniform",
    "occlusion",
    "open_result",
    "plan",
    "race",
    "route",
    "run",
    "run_daemon",
    "sample",
    "search",
    "select",
    "task",
    "uniform",
    "when",
    "workload",
]

if TYPE_CHECKING:
    from dovetail.adapters import from_lightning, from_trainer
    from dovetail.control import Result, Settings, open_result
    from dovetail.describe import (
        Search,
        choice,
        grid,
        integers,
        join,
        log_uniform,
        sample,
        task,
        uniform,
        when,
        workload,
    )
    from dovetail.engines import detect
    from dovetail.feeds import Shards, feed
    from dovetail.selection.record import Selection
    from dovetail.serve.cascades import CascadeClassifier, CascadeRegressor
    from dovetail.serve.incremental import incremental, occlusion
    from dovetail.serve.routing import route
    from dovetail.train import Scheduler, ShardEvaluation, Training
    from dovetail.verbs.client import connect
    from dovetail.verbs.daemon import run_daemon
    from dovetail.verbs.make_cascade import cascade
    from dovetail.verbs.make_plan import plan
    from dovetail.verbs.race import race
    from dovetail.verbs.run_search import search
    from dovetail.verbs.run_workload import run
    from dovetail.verbs.select_examples import select
    from dovetail.verbs.session import Session
    from dovetail.vocabulary import (
        Cluster,
        DataShard,
        DovetailError,
        Halving,
        Plan,
        Population,
        Stop,
        Task,
        TrainingError,
        Workload,
    )
    from dovetail.watch.drift import DriftDetector, drift
    from dovetail.watch.explain import explain
    from dovetail.watch.streams import Monitor


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'dovetail' has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
