"""The trainings of a row of `bench/fuse.py` as a sweep; the programs put their data on the device, as people do who
have little of it. DOVETAIL_BENCH_ROW names the row."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from fuse import ROWS

import dovetail as dt

ROW = ROWS[os.environ.get("DOVETAIL_BENCH_ROW", "mlp")]
STEPS = int(os.environ.get("DOVETAIL_BENCH_STEPS", "100"))
QUICK = bool(os.environ.get("DOVETAIL_BENCH_QUICK"))


def member(seed: int) -> dt.Training:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return ROW.build(seed=seed, device=device, **(ROW.quick if QUICK else {}))


workload = dt.grid(member, seed=list(range(ROW.members)), steps=STEPS, name="fused")
