"""Searches over the character model: what `search.py` times, and what it kills.

DOVETAIL_BENCH_STEPS and DOVETAIL_BENCH_COUNT are how long each task trains and how many trials there are.
"""

import os
import sys
from pathlib import Path

import dovetail as dt

sys.path.insert(0, str(Path(__file__).parents[2] / "recipes"))

from charlm import charlm

STEPS, COUNT = int(os.environ.get("DOVETAIL_BENCH_STEPS", "200")), int(os.environ.get("DOVETAIL_BENCH_COUNT", "40"))
SPACE = {
    "learning_rate": dt.log_uniform(1e-3, 3e-2),
    "dropout": dt.uniform(0.0, 0.3),
    "width": 32,
    "depth": 2,
    "heads": 2,
    "context": 64,
    "batch": 16,
}

timed = dt.Search(charlm, SPACE, metric="held_out_loss", steps=STEPS, count=COUNT, name="timed")
killed = dt.Search(charlm, SPACE, metric="held_out_loss", steps=STEPS, count=COUNT, name="killed")
population = dt.Search(
    charlm,
    SPACE,
    metric="held_out_loss",
    sampler=dt.Population(every_steps=max(1, STEPS // 4)),
    steps=STEPS,
    count=4,
    name="population",
)
