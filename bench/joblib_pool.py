"""What people reach for first: the same tasks by joblib with two processes, each with half the cores.

`python bench/joblib_pool.py sweeps/first_week.py:search_100 [WORKERS]` prints one line of JSON.
"""

import json
import os
import sys
import time
from typing import Any


def main() -> None:
    began = time.perf_counter()
    path, workers = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2
    cores = max(1, len(os.sched_getaffinity(0)) // workers)
    os.environ["OMP_NUM_THREADS"] = str(cores)  # before anybody imports torch

    from joblib import Parallel, delayed

    from dovetail.describe import load_workload

    tasks = load_workload(path).tasks
    rows = Parallel(n_jobs=workers)(delayed(train_one)(task) for task in tasks)
    print(json.dumps({"seconds": time.perf_counter() - began, "threads": cores, "tasks": rows}))


def train_one(task: Any) -> dict[str, Any]:
    """Train one task as the plain loop does."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from one_after_another import train

    return train(task)


if __name__ == "__main__":
    main()
