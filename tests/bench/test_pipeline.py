import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("bench", "words"),
    [
        ("pipeline", "1F1B, torch's seconds over ours"),
        ("convergence", "vertical_sync"),
        ("pipeline_kills", "share of tasks that end with the undisturbed weights: 1"),
    ],
)
def test_it_runs(bench: str, words: str) -> None:
    done = subprocess.run(
        [sys.executable, f"bench/{bench}.py", "--quick"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert words.replace("_", "") in done.stdout.replace("_", "").replace("\n", " ")
