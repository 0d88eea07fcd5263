"""Measuring a gang."""

from pathlib import Path

import torch

from dovetail.profile.step_measurement import measure
from dovetail.testing import programs
from dovetail.train import FUSE


def test_a_step_of_a_gang_is_one_of_all_members(tmp_path: Path) -> None:
    training, *others = (programs.fresh("norm", seed=seed).training for seed in range(3))
    profile = measure(
        FUSE,
        training,
        others=others,
        seed=0,
        device=torch.device("cpu"),
        threads=1,
        kind="cpu",
        count=1,
        family="f",
        build_seconds=0.0,
        scratch=tmp_path,
        seconds=0.0,
        knobs={"compile": "off"},
    )
    assert profile.technique == "fuse"
    assert profile.knobs == {"compile": "off", "members": 3}
    assert profile.metrics == ("mean", "train/loss")
