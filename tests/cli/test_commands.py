"""Every command on real work: what it prints, what it leaves, how it ends."""

import signal
import subprocess
import sys

import psutil
import pytest
import safetensors.torch
import torch

from dovetail.control import ask
from dovetail.store import Store
from dovetail.vocabulary import StoreError
from tests.cli.processes import ENVIRONMENT, HOME, begin, dovetail, end, events, rows, spans, until, write

PROGRAMS = """
import time

import torch
from torch import nn

import dovetail as dt


def line(slope=3.0, learning_rate=0.1, pause=0.0):
    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    x = torch.linspace(-1, 1, 16).unsqueeze(1)

    def loss(model, batch):
        time.sleep(pause)
        return (model(batch) - slope * batch).square().mean()

    return dt.Training(
        model=model,
        batches=[x[::2], x[1::2]],
        loss=loss,
        optimizer=torch.optim.Adam(model.parameters(), lr=learning_rate),
        evaluate=lambda model: {"error": (model(x) - slope * x).abs().max().item(), "odd": float("nan")},
        evaluate_every=10,
    )


def language_model():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=8, bos_token_id=None, eos_token_id=None, use_cache=False, tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    tokens = torch.arange(8).unsqueeze(0)
    return dt.Training(
        model=model,
        batches=[{"input_ids": tokens, "labels": tokens}],
        loss=lambda model, batch: model(**batch).loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )
"""

SWEEP = """
import dovetail as dt

lines = dt.grid("programs.py:line", learning_rate=[0.1, 1e-9], steps=40)
workload = dt.join(lines, dt.grid("programs.py:language_model", steps=5), name="sweep")
partly = dt.workload(
    [
        dt.task("programs.py:line", name="fine", steps=40),
        dt.task("programs.py:line", name="not fine", steps=40, sloep=1),
    ]
)
"""

FAST, SLOW = "line learning_rate=0.1", "line learning_rate=1e-09"


def test_help_imports_no_torch(tmp_path):
    code = (
        "import sys\n"
        "from dovetail.cli import main\n"
        "sys.argv = ['dovetail', '--help']\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    assert not ended.code\n"
        "assert not {'torch', 'numpy', 'transformers'} & set(sys.modules), sorted(sys.modules)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, cwd=tmp_path, check=False
    )
    assert found.returncode == 0, found.stderr
    for verb in (
        "run",
        "plan",
        "profile",
        "show",
        "report",
        "export",
        "cluster",
        "stop",
        "cancel",
        "daemon",
        "submit",
        "list",
        "clone",
        "deadline",
        "ui",
        "track",
    ):
        assert f" {verb} " in found.stdout


def test_cluster_tells_the_devices_of_this_machine(tmp_path):
    found = dovetail("cluster", "--json", cwd=tmp_path)
    assert found.code == 0
    cluster = found.json()
    assert len(cluster["devices"]) >= 1
    assert {device["kind"] for device in cluster["devices"]} == {kind["name"] for kind in cluster["kinds"]}
    assert cluster["kinds"][0]["name"] in dovetail("cluster", cwd=tmp_path).out
    assert not (tmp_path / HOME).exists()


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A folder in which a workload ran to its end, with what `run --json` wrote."""
    folder = write(tmp_path_factory.mktemp("done"), programs=PROGRAMS, sweep=SWEEP)
    return folder, dovetail("run", "sweep.py", "--json", "--track", "tensorboard:curves", cwd=folder)


@pytest.mark.process
class TestAfterARun:
    def test_json_stands_alone_on_standard_output(self, done):
        _, finished = done
        assert finished.code == 0
        found = finished.json()
        assert found["workload"] == "sweep"
        assert found["makespan_seconds"] > 0
        assert {row["task"]: (row["status"], row["step"]) for row in found["tasks"]} == {
            FAST: ("finished", 40),
            SLOW: ("finished", 40),
            "language_model": ("finished", 5),
        }

    def test_json_has_no_word_that_is_not_json(self, done):
        # `Finished.json` refuses NaN; evaluation reports one.
        assert all(row["metrics"].get("odd") is None for row in done[1].json()["tasks"])

    def test_progress_stands_on_the_error_stream(self, done):
        assert f"{FAST} running at step 0" in done[1].err
        assert f"{FAST} finished at step 40" in done[1].err

    def test_run_again_has_nothing_to_do(self, done):
        found = dovetail("run", "sweep.py", "--quiet", cwd=done[0])
        assert (found.code, found.err) == (0, "")
        assert FAST in found.out
        assert spans(done[0], FAST) == [(0, 40)]

    def test_show_tells_the_same(self, done):
        found = dovetail("show", cwd=done[0])
        assert found.code == 0
        for word in (FAST, SLOW, "language_model", "finished", "40", "error", "train/loss"):
            assert word in found.out
        assert rows(done[0])[FAST]["metrics"]["error"] == done[1].json()["tasks"][0]["metrics"]["error"]
        another = dovetail("show", "--workload", "another", cwd=done[0])
        assert (another.code, another.out) == (2, "")
        assert "workload must be one of those in the store, ['sweep'], got 'another'" in another.err

    def test_report_is_one_page_that_loads_nothing(self, done):
        found = dovetail("report", "-o", "page.html", cwd=done[0])
        assert (found.code, found.out.strip()) == (0, "page.html")
        page = (done[0] / "page.html").read_text()
        assert FAST in page
        assert 'src="http' not in page

    def test_tensorboard_files_hold_the_curves(self, done):
        assert list((done[0] / "curves").rglob("*tfevents*")), "written by run --track"
        found = dovetail("track", "tensorboard:later", cwd=done[0])
        assert found.code == 0
        assert "new points sent to tensorboard:later" in found.err
        assert len(list((done[0] / "later").rglob("*tfevents*"))) == len(list((done[0] / "curves").rglob("*tfevents*")))
        again = dovetail("track", "tensorboard:curves", cwd=done[0])
        assert "0 new points sent to tensorboard:curves" in again.err

    def test_export_writes_what_safetensors_reads(self, done):
        found = dovetail("export", FAST, "-o", "model.safetensors", cwd=done[0])
        assert found.code == 0
        assert found.out.strip() == f"model.safetensors  ({FAST})"
        tensors = safetensors.torch.load_file(done[0] / "model.safetensors")
        assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {
            "0.weight": (8, 1),
            "0.bias": (8,),
            "2.weight": (1, 8),
            "2.bias": (1,),
        }
        assert all(torch.isfinite(tensor).all() for tensor in tensors.values())

    def test_export_finds_the_best(self, done):
        found = dovetail("export", "--best", "error", "--goal", "min", "-o", "best", cwd=done[0])
        assert found.code == 0
        assert f"({FAST}, error " in found.out, "and what made it the best"
        assert (done[0] / "best" / "model.safetensors").is_file()

    def test_a_metric_that_is_nan_everywhere_is_nobodys_best(self, done):
        found = dovetail("export", "--best", "odd", cwd=done[0])
        assert found.code == 2
        assert "some task must have reported 'odd' as a number" in found.err

    def test_a_transformers_model_comes_out_as_transformers_reads_it(self, done):
        assert dovetail("export", "language_model", "-o", "pretrained", cwd=done[0]).code == 0
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(done[0] / "pretrained")
        assert type(model).__name__ == "LlamaForCausalLM"
        tokens = torch.arange(8).unsqueeze(0)
        # The loss of step 5 was taken before that step's update: the exported weights do no worse.
        loss = model(input_ids=tokens, labels=tokens).loss.item()
        assert loss <= rows(done[0])["language_model"]["metrics"]["train/loss"]

    def test_plan_tells_placements_bound_and_reasons(self, done):
        found = dovetail("plan", "sweep.py:lines", "--store", "planned", cwd=done[0])
        assert found.code == 0
        for word in (FAST, "resident", "n0:0", "makespan", "no schedule takes less than"):
            assert word in found.out
        # What was measured is not measured again, and nothing was trained.
        again = dovetail("plan", "sweep.py:lines", "--store", "planned", "--json", cwd=done[0])
        assert len(again.json()["schedule"]["placements"]) == 2
        assert {row["status"] for row in rows(done[0], "planned").values()} == {"pending"}
        assert not (done[0] / "planned" / "checkpoints").exists()

    def test_plan_names_what_it_leaves_out(self, done):
        found = dovetail("plan", "sweep.py:partly", cwd=done[0])
        assert found.code == 0
        assert "not planned: not fine: " in found.out
        assert "Did you mean 'slope'?" in found.out

    def test_profile_shows_every_layer(self, done):
        found = dovetail("profile", "sweep.py", "--layers", cwd=done[0])
        assert found.code == 0
        for word in ("Linear", "Tanh", "LlamaRMSNorm", f"{FAST}, {SLOW}"):
            assert word in found.out
        measured = dovetail("profile", "sweep.py", "--json", cwd=done[0]).json()
        assert {row["tasks"] for row in measured} == {f"{FAST}, {SLOW}", "language_model"}
        assert all(row["step_seconds"] > 0 for row in measured)


# A controller that runs

LONG = """
import dovetail as dt

workload = dt.workload(
    [dt.task("programs.py:line", name=name, steps=1_000_000, pause=0.005) for name in ("one", "two", "three")],
    name="long",
)
"""


def status(folder):
    """What the running controller says of itself; nothing where none runs yet."""
    try:
        return ask(folder / HOME, {"do": "status"})
    except StoreError:
        return {}


def running(folder):
    """The names of the tasks that have begun to take steps."""
    return [row["task"] for row in status(folder).get("tasks", ()) if row["status"] == "running" and row["step"]]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """What was said and found while a controller ran, was told to cancel and to stop, ran again and was interrupted."""
    folder = write(tmp_path_factory.mktemp("stopped"), programs=PROGRAMS, sweep=LONG)
    seen = {"folder": folder}
    process = begin("run", "sweep.py", cwd=folder)
    try:
        seen["cancelled"] = until(lambda: running(folder), what="a running task")[0]
        seen["first"] = process.pid
        seen["second"] = dovetail("run", "sweep.py", cwd=folder)
        seen["unknown"] = dovetail("cancel", "four", cwd=folder)
        seen["cancel"] = dovetail("cancel", seen["cancelled"], cwd=folder)
        until(lambda: _cancelled(folder), what="the cancelled task")
        seen["shown"] = dovetail("show", "--json", cwd=folder)
        seen["stop"] = dovetail("stop", cwd=folder)
    finally:
        _end_whatever_happens(process, seen, "run")
    seen["after the stop"] = rows(folder)
    process = begin("run", "sweep.py", cwd=folder)
    try:
        until(lambda: running(folder), what="a running task, again")
        process.send_signal(signal.SIGINT)
    finally:
        _end_whatever_happens(process, seen, "again")
    seen["after the interrupt"] = rows(folder)
    return seen


def _cancelled(folder):
    return [row for row in status(folder).get("tasks", ()) if row["status"] == "cancelled"]


def _end_whatever_happens(process, seen, name):
    if sys.exc_info()[0] is not None:
        process.kill()
    seen[name] = end(process)


@pytest.mark.process
class TestAControllerThatRuns:
    def test_a_second_controller_is_refused_with_a_code_of_its_own(self, stopped):
        assert stopped["second"].code == 3
        assert f"is held by process {stopped['first']}." in stopped["second"].err

    def test_cancelling_a_task_that_it_does_not_have_is_refused(self, stopped):
        assert stopped["unknown"].code == 2
        assert "the task must be one of ['one', 'two', 'three'], got 'four'" in stopped["unknown"].err

    def test_a_cancelled_task_is_saved_and_runs_no_more(self, stopped):
        assert stopped["cancel"].code == 0
        folder, name = stopped["folder"], stopped["cancelled"]
        assert stopped["after the interrupt"][name]["status"] == "cancelled"
        assert len(spans(folder, name)) == 1
        (saved,) = events(folder, name, "saved")
        assert saved.step == stopped["after the interrupt"][name]["step"] > 0

    def test_others_can_read_while_it_runs(self, stopped):
        assert stopped["shown"].code == 0
        assert {row["status"] for row in stopped["shown"].json()["tasks"]} <= {"running", "pending", "cancelled"}

    def test_stop_saves_everything_and_says_how_to_go_on(self, stopped):
        assert stopped["stop"].code == 0
        assert stopped["run"].code == 130
        assert "Stopped before the end; run the same command to go on." in stopped["run"].err
        reasons = {row["reason"] for row in stopped["after the stop"].values() if row["status"] == "pending"}
        assert "asked for by 'dovetail stop'" in reasons

    def test_an_interrupt_does_the_same(self, stopped):
        assert stopped["again"].code == 130
        assert "Stopped before the end; run the same command to go on." in stopped["again"].err
        assert "Traceback" not in stopped["again"].err
        reasons = {row["reason"] for row in stopped["after the interrupt"].values() if row["status"] == "pending"}
        assert "interrupted by SIGINT" in reasons

    def test_it_goes_on_from_the_step_that_was_saved(self, stopped):
        folder = stopped["folder"]
        for name in {"one", "two", "three"} - {stopped["cancelled"]}:
            begun = [step for step, _ in spans(folder, name)]
            ended = [event.step for event in events(folder, name, "stopped")]
            assert begun == [0, *ended[:-1]][: len(begun)]
            assert ended == sorted(ended)
            assert stopped["after the interrupt"][name]["step"] == max(ended, default=0)
        assert any(len(spans(folder, name)) == 2 for name in ("one", "two", "three"))

    def test_no_process_is_left(self, stopped):
        folders = {process.info["cwd"] for process in psutil.process_iter(["cwd"])}
        assert str(stopped["folder"]) not in folders


SLEEPY = """
import time

import dovetail as dt


def sleepy():
    time.sleep(600)


workload = dt.grid(sleepy, steps=5)
"""


@pytest.mark.process
def test_a_reader_that_leaves_ends_nothing(tmp_path):
    write(tmp_path, programs=PROGRAMS, sweep=SWEEP)
    process = begin("run", "sweep.py:partly", cwd=tmp_path, stderr=subprocess.STDOUT)
    try:
        assert process.stdout.readline()
        process.stdout.close()
        code = process.wait(timeout=400)
    finally:
        process.kill()
    assert code == 1  # for what failed
    assert {name: row["status"] for name, row in rows(tmp_path).items()} == {"fine": "finished", "not fine": "failed"}


@pytest.mark.slow
@pytest.mark.process
def test_a_terminal_that_is_closed_is_a_stop(tmp_path):
    sweep = 'import dovetail as dt\nworkload = dt.grid("programs.py:line", pause=[0.02], steps=100000)\n'
    write(tmp_path, programs=PROGRAMS, sweep=sweep)
    # These tests themselves may run under nohup, which commands inherit and respect.
    process = begin("run", "sweep.py", cwd=tmp_path, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
    try:
        until(lambda: "started" in kinds(tmp_path), what="a start")
        process.send_signal(signal.SIGHUP)
    finally:
        finished = end(process)
    assert finished.code == 130
    (row,) = rows(tmp_path).values()
    assert row["status"] == "pending"
    assert row["reason"] == "interrupted by SIGHUP"


def kinds(folder):
    try:
        with Store(folder / HOME) as store:
            return {event.kind for _, event in store.events()}
    except StoreError:  # not there yet, or just being made
        return set()


@pytest.mark.process
def test_an_interrupt_while_measuring_ends_it_and_loses_nothing(tmp_path):
    write(tmp_path, sweep=SLEEPY)
    process = begin("run", "sweep.py", cwd=tmp_path)
    seen = {}
    try:
        until(lambda: status(tmp_path).get("phase") == "measuring", what="measuring")
        process.send_signal(signal.SIGINT)
    finally:
        _end_whatever_happens(process, seen, "run")
    assert seen["run"].code == 130
    assert "Traceback" not in seen["run"].err
    assert rows(tmp_path)["sleepy"]["status"] == "pending"
