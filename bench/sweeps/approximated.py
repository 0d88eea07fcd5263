"""The GPT of `bench/fp8.py` as a workload of one task. DOVETAIL_BENCH_STEPS says how many steps, DOVETAIL_BENCH_QUICK
makes it a toy."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from fp8 import gpt

import dovetail as dt


def member(seed: int) -> dt.Training:
    quick, on_device = bool(os.environ.get("DOVETAIL_BENCH_QUICK")), torch.cuda.is_available()
    return gpt(precision="bf16" if on_device else "fp32", compiled=on_device, quick=quick, seed=seed)


workload = dt.grid(member, seed=[0], steps=int(os.environ.get("DOVETAIL_BENCH_STEPS", "20000")), name="approximated")
