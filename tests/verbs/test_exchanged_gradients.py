"""Gradients exchanged otherwise than exactly, from `--allow` to trials by real ranks."""

import dataclasses
from pathlib import Path

import pytest

import dovetail as dt
from dovetail.engines import detect
from dovetail.store import Store
from dovetail.vocabulary import Link

PROGRAM = """
import torch
from torch import nn
import dovetail as dt

def layers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256))
    return dt.Training(
        model=model,
        batches=[torch.randn(32, 256, generator=torch.Generator().manual_seed(n)) for n in range(9)],
        loss=lambda model, batch: (model(batch) - batch).square().mean(),
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
    )
"""


@pytest.mark.slow
@pytest.mark.process
def test_over_a_link_that_is_slow_they_are_measured(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    here = detect()
    if len(here.devices) < 2:
        pytest.skip("two ranks take two devices")
    slow = dataclasses.replace(here, links=(Link(source="process", target="process", bytes_per_second=2e6),))
    # So long that trials are worth their time; nothing is trained but those.
    sweep = dt.grid(f"{tmp_path}/program.py:layers", steps=100_000, name="layers", techniques="replicate")
    dt.plan(sweep, allow="gradients-bf16,gradients-lowrank", cluster=slow, store=tmp_path / "store")
    with Store(tmp_path / "store") as opened:
        found = {each.knobs.get("approximate", "") for each in opened.profiles() if each.technique == "replicate"}
    assert found == {"", "gradients-bf16", "gradients-lowrank"}
