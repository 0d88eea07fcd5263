"""The other baseline: the same tasks two at a time in arrival order, each in a bare process with half the cores.

What a careful person does by hand: a queue and two workers. Each worker is one process that imports once.
`python bench/two_at_a_time.py recipes/digits.py [WORKERS]` prints one line of JSON.
"""

import json
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any


def main() -> None:
    began = time.perf_counter()
    path, workers = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2
    cores = max(1, len(os.sched_getaffinity(0)) // workers)
    os.environ["OMP_NUM_THREADS"] = str(cores)  # before anybody imports torch
    context = multiprocessing.get_context("spawn")
    # Those of a multiprocessing.Pool may have no processes of their own, and some programs' loaders do.
    with ProcessPoolExecutor(workers, mp_context=context, initializer=prepare, initargs=(path,)) as pool:
        rows = list(pool.map(train_number, range(count(path))))
    print(json.dumps({"seconds": time.perf_counter() - began, "threads": cores, "tasks": rows}))


def count(path: str) -> int:
    """How many tasks there are."""
    from dovetail.describe import load_workload

    return len(load_workload(path).tasks)


def prepare(path: str) -> None:
    """Read the workload once a process, which is to start others as one from a shell does, and not as it was itself."""
    global tasks
    multiprocessing.set_start_method("fork", force=True)
    from dovetail.describe import load_workload

    tasks = load_workload(path).tasks


def train_number(number: int) -> dict[str, Any]:
    """Train one task as the other baseline does."""
    from one_after_another import train

    return train(tasks[number])


if __name__ == "__main__":
    main()
