"""A multilayer perceptron, a convolutional net and a character transformer, a few of each: unlike tasks on few cores.

`steps` is scaled by DOVETAIL_BENCH_STEPS, so that a smoke run is short.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "recipes"))

from charlm import charlm
from digits import cnn, mlp

import dovetail as dt

STEPS = int(os.environ.get("DOVETAIL_BENCH_STEPS", "4000"))

workload = dt.join(
    dt.grid(mlp, width=[256], learning_rate=[1e-3, 3e-3], seed=[0, 1], steps=STEPS),
    dt.grid(cnn, channels=[16], learning_rate=[2e-3, 5e-3], seed=[0], steps=max(1, STEPS // 4)),
    dt.grid(charlm, width=[64], depth=[2], context=[64], batch=[16], learning_rate=[1e-3, 3e-3],
            steps=max(1, STEPS // 8)),
    name="mix",
)  # fmt: skip
