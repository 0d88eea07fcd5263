"""From what users write to programs, tasks and workloads. Imports user code; knows nothing of torch or stores."""

from dovetail.describe.carried import deposit
from dovetail.describe.installed import versions
from dovetail.describe.programs import (
    check_names,
    check_parameters,
    check_source,
    load,
    program,
)
from dovetail.describe.searches import Search
from dovetail.describe.spaces import choice, integers, log_uniform, uniform, when
from dovetail.describe.sweeps import grid, join, sample, task, workload
from dovetail.describe.workload_files import load_described, load_workload

__all__ = [
    "Search",
    "check_names",
    "check_parameters",
    "check_source",
    "choice",
    "deposit",
    "grid",
    "integers",
    "join",
    "load",
    "load_described",
    "load_workload",
    "log_uniform",
    "program",
    "sample",
    "task",
    "uniform",
    "versions",
    "when",
    "workload",
]
