"""Every bench runs. What it measures is judged by `make bench`, on a machine left alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.web.browser import find_chromium

ROOT = Path(__file__).parents[2]

SWEEP = """
import torch
from torch import nn
import dovetail as dt

def line(learning_rate=0.1, seed=0):
    model = nn.Linear(4, 1)
    batches = [torch.ones(8, 4) * n for n in range(5)]
    return dt.Training(
        model=model, batches=batches, loss=lambda model, batch: (model(batch) - 1).square().mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=learning_rate * 1e-2),
        evaluate=lambda model: {"accuracy": 0.5},
    )

workload = dt.grid(line, learning_rate=[0.1, 0.01], epochs=4)
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_simulation_meets_its_bars_at_a_small_size() -> None:
    done = run("bench/simulation.py", "--quick", "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "300 tasks on 32 devices" in done.stdout


@pytest.mark.slow
@pytest.mark.process
def test_a_feed_is_set_beside_fixed_settings_and_the_loader() -> None:
    done = run("bench/feed.py", "frees", "simulated", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "frees, of the best fixed setting" in done.stdout
    assert "simulated, ours over what was hoped for" in done.stdout


@pytest.mark.slow
def test_what_feeds_hold_is_set_beside_their_budgets() -> None:
    done = run("bench/feed.py", "memory", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "memory, peak over a budget of 64 MiB, large" in done.stdout


def test_overhead_prints_its_table() -> None:
    done = run("bench/overhead.py", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ours over bare" in done.stdout


@pytest.mark.slow
@pytest.mark.process
def test_runs_of_a_session_cost_little() -> None:
    done = run("bench/fixed_cost.py", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a finished workload again" in done.stdout


def test_a_missed_bar_is_named_and_ends_with_1() -> None:
    code = (
        "from reporting import Bar, finish\n"
        "raise SystemExit(finish('x', [], [Bar('speed', 1.0, least=2.0)], check=True, quick=True))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "bench", capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "MISSED  speed: 1 (at least 2)" in done.stdout


@pytest.mark.process
def test_the_demo_ends_with_its_tables_and_a_report(tmp_path: Path) -> None:
    (tmp_path / "sweep.py").write_text(SWEEP)
    home = tmp_path / "store"
    done = run("bench/demo.py", str(tmp_path / "sweep.py"), str(home), "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    for words in ("line", "plain mean", "gain, whole command against whole plain loop", "of which training"):
        assert words in done.stdout
    assert Path(done.stdout.rpartition("report: ")[2].strip()).read_text().startswith("<!")


@pytest.mark.slow
@pytest.mark.process
def test_the_first_week_counts_good_and_bad_programs() -> None:
    done = run("bench/first_week.py", "crashing", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "met     crashing, good tasks that finish: 26" in done.stdout
    assert "met     crashing, bad tasks that are set aside: 4" in done.stdout


@pytest.mark.slow
@pytest.mark.process
def test_the_page_is_loaded_and_moved() -> None:
    find_chromium()
    done = run("bench/page_load.py", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "300 tasks, frames a second, schedule" in done.stdout


@pytest.mark.process
def test_cascades_are_set_beside_the_plain_pipeline() -> None:
    done = run("bench/serve.py", "promise", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "to lose at most" in done.stdout


@pytest.mark.process
@pytest.mark.slow
def test_a_server_loses_nothing() -> None:
    done = run("bench/server.py", "losses", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "met     losses, lost: 0" in done.stdout


@pytest.mark.process
def test_frames_are_set_beside_numpy_and_pandas() -> None:
    done = run("bench/frames.py", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "black_scholes, times faster than numpy" in done.stdout
    assert "met     births, equal to pandas" in done.stdout


@pytest.mark.process
def test_loops_are_placed() -> None:
    done = run("bench/frame_placement.py", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "met     largest relative difference to NumPy" in done.stdout


@pytest.mark.slow
@pytest.mark.process
def test_occlusion_is_set_beside_whole_pictures() -> None:
    done = run("bench/occlusion.py", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "met     resnet18 on cpu, relative error" in done.stdout


@pytest.mark.process
@pytest.mark.slow
def test_routers_are_judged_on_what_they_have_not_seen() -> None:
    done = run("bench/routing.py", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "met     gsm8k, APGR by text" in done.stdout


@pytest.mark.process
@pytest.mark.slow
def test_pages_beside_a_sweep_are_counted() -> None:
    done = run("bench/page_cost.py", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10 pages, share by which training is slower" in done.stdout


@pytest.mark.process
@pytest.mark.slow
def test_trackers_hold_every_point_once() -> None:
    done = run("bench/trackers.py", "arrive", "--quick", "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "met     arrive, MLflow" in done.stdout


@pytest.mark.process
@pytest.mark.slow
def test_the_daemon_answers_every_submission_of_clients_at_once() -> None:
    done = run("bench/daemon_load.py", "--quick", "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "met     tasks that were answered and are missing: 0" in done.stdout


@pytest.mark.slow
@pytest.mark.process
def test_examples_are_chosen_in_five_ways() -> None:
    done = run("bench/select_examples.py", "--quick", "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "dt.select" in done.stdout


@pytest.mark.slow
@pytest.mark.process
def test_every_acknowledged_checkpoint_of_an_object_store_loads() -> None:
    done = run("bench/object_store.py", "--quick", "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "met     kills: 2" in done.stdout
    assert "met     acknowledged checkpoints that do not load, or with other bits: 0" in done.stdout


def test_streams_and_drift_are_measured() -> None:
    done = run("bench/drift.py", "hitters", "names", "--quick", "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "precision" in done.stdout


@pytest.mark.slow
def test_every_part_of_streams_and_drift_runs() -> None:
    done = run("bench/drift.py", "--quick", "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "met     growth, saved after all over after a tenth" in done.stdout


def test_explanations_are_those_of_brute_force_at_a_small_size() -> None:
    done = run("bench/why.py", "million", "memory", "--quick", "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Polars' order 2 over our order 3" in done.stdout


@pytest.mark.slow
@pytest.mark.process
def test_a_planted_region_of_a_sweep_is_named_first() -> None:
    done = run("bench/why.py", "sweep", "--quick", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(
    ("part", "exact"),
    [
        ("gangs", "tensors that are not as on one node: 0"),
        ("come-and-go", "tasks that did not learn what they learn alone: 0"),
        ("spend", "tasks that did not learn what they learn alone: 0"),
    ],
)
def test_what_is_learned_does_not_depend_on_nodes(part: str, exact: str) -> None:
    done = run("bench/nodes.py", part, "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"met     {part}, {exact}" in done.stdout


@pytest.mark.process
@pytest.mark.slow
def test_products_in_8_bits_are_set_beside_exact_ones_where_they_can_be_had() -> None:
    done = run("bench/fp8.py", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "one block's products alone" in done.stdout
    assert "dovetail run --allow fp8" in done.stdout


@pytest.mark.process
@pytest.mark.parametrize("words", [("numeric.py",), pytest.param(("convergence.py", "charlm"), marks=pytest.mark.slow)])
def test_approximations_are_set_beside_exact_steps(words: tuple[str, ...]) -> None:
    name, *part = words
    done = run(f"bench/{name}", *part, "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exact" in done.stdout
    assert "state-8bit" in done.stdout


def test_tolerances_are_kept_as_often_as_stated() -> None:
    done = run("bench/guard.py", "statistics", "--quick", "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "statistics, wrongly said to be kept" in done.stdout


@pytest.mark.slow
@pytest.mark.process
def test_copies_that_exchange_less_are_set_beside_exact_ones() -> None:
    done = run("bench/guard.py", "exchange", "--quick", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.process
def test_models_hop_over_nodes_with_ports_of_their_own() -> None:
    done = run("bench/hop.py", "--quick", "--ours")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hop over the bound that its plan promised" in done.stdout
    assert "met     models that differ from one-device SGD over the same order: 0" in done.stdout
