"""The bench of partitions runs, and reads what PipeDream wrote."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROFILES = ROOT.parent / "shared" / "data" / "pipedream_profiles"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"COLUMNS": "260", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.skipif(not PROFILES.is_dir(), reason="PipeDream's profiles are not at ../shared/data")
def test_a_quick_run_meets_its_bars() -> None:
    done = run("bench/partition.py", "--quick", "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "vgg16 on 4x4" in done.stdout


READS = """
import sys
from pathlib import Path
sys.path.insert(0, "bench")
from partition import read
graph = read(Path(sys.argv[1]))
layers = [(layer.name, layer.activation_bytes, layer.parameter_bytes) for layer in graph.layers]
print(layers, graph.edges, round(graph.seconds, 6))
"""


def test_the_text_of_a_graph_is_read_without_inputs_and_unread_items(tmp_path: Path) -> None:
    figures = "forward_compute_time=1.000, backward_compute_time=2.000, activation_size={}, parameter_size=8.000"
    (tmp_path / "graph.txt").write_text(
        f"n1 -- Input0 -- {figures.format('0.0')}\n"
        f"n2 -- LSTM(4, 4) -- {figures.format('[6.0; 2.0]')}\n"
        f"n3 -- __getitem__(1) -- {figures.format('2.0')}\n"
        f"n4 -- Linear(4, 4) -- {figures.format('4.0')} -- stage_id=1\n"
        "\tn1 -- n2\n\tn2 -- n3\n\tn2 -- n4\n"
    )
    done = run("-c", READS, str(tmp_path / "graph.txt"))
    assert done.stdout.strip() == "[('n2', 8, 8), ('n4', 4, 8)] (('n2', 'n4'),) 0.006", done.stderr


def test_without_the_profiles_it_fails_and_says_why() -> None:
    code = (
        "import sys, pathlib; sys.path.insert(0, 'bench'); sys.argv = ['partition.py']; import partition; "
        "partition.PROFILES = pathlib.Path('nowhere'); partition.main()"
    )
    done = run("-c", code)
    assert done.returncode == 1
    assert "it is not there. Nothing was measured." in done.stderr
