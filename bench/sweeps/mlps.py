"""Sixteen small multilayer perceptrons of one shape: the sweep that fusing is made for.

`steps` of each is read from DOVETAIL_BENCH_STEPS, so that a smoke run is short.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "recipes"))

from digits import mlp

import dovetail as dt

workload = dt.grid(
    mlp,
    width=[64],
    learning_rate=[3e-4, 1e-3, 3e-3, 1e-2],
    dropout=[0.0],
    seed=[0, 1, 2, 3],
    steps=int(os.environ.get("DOVETAIL_BENCH_STEPS", "4000")),
    name="mlps",
)
