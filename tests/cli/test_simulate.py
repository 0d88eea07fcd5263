"""`dovetail simulate`: what it reads, what it shows, what it refuses."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dovetail.cli.app import app

TRACE = """task,at_seconds,steps,count,deadline_seconds,v100,k80
first,0,7200,1,,4,1
second,100,3600,1,100,4,1
wide,200,400,2,,1,
"""
GAVEL = {
    "v100": {"('LM', 1)": {"null": 4.0}, "('CNN', 1)": {"null": 2.0}},
    "k80": {"('LM', 1)": {"null": 1.0}, "('CNN', 1)": {"null": 1.5}},
}


def simulate(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["simulate", *map(str, arguments)])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


@pytest.fixture
def rates(tmp_path: Path) -> Path:
    path = tmp_path / "rates.json"
    path.write_text(json.dumps(GAVEL))
    return path


def gavel_line(model: str, *, count: int = 1, at: float = 0.0) -> str:
    return "\t".join([model, "command", "folder", "-n", "0", "1000", str(count), "1.0", "-1", str(at)])


def test_a_trace_of_our_own_as_a_table(trace: Path) -> None:
    found = simulate(trace, "--cluster", "2xv100+2xk80")
    assert found.exit_code == 0, found.output
    head, line = found.stdout.strip().splitlines()
    assert head.split()[:3] == ["policy", "load", "mean"]
    assert line.startswith("max_min_fairness")


def test_a_sweep_over_policies_and_loads_as_json(trace: Path) -> None:
    found = simulate(
        trace, "--cluster", "2xv100+2xk80", "--policy", "max_min_fairness,first_come", "--blind", "--json",
        "--loads", "1,4",
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    cases = json.loads(found.stdout)
    assert [(case["policy"], case["load"], case["blind"]) for case in cases] == [
        (policy, load, blind)
        for policy in ("max_min_fairness", "first_come")
        for load in (1.0, 4.0)
        for blind in (False, True)
    ]
    assert all(case["seconds"].keys() == {"first", "second", "wide"} for case in cases)
    assert all("second" in case["missed"] for case in cases)


def test_the_page_has_plots_and_fetches_nothing(trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    found = simulate(trace, "--cluster", "2xv100+2xk80", "--report", page)
    assert found.exit_code == 0, found.output
    text = page.read_text()
    for name in ("completion", "utilisation", "fairness"):
        assert f'<div id="{name}">' in text
    assert "default-src 'none'" in text.replace("&#x27;", "'")


def test_drawn_tasks_are_the_same_for_a_seed() -> None:
    how = (
        "--generate",
        8,
        "--rate",
        20,
        "--cluster",
        "8xv100+4xk80",
        "--several",
        "--json",
        "--policy",
        "completions",
    )
    one, same, other = (json.loads(simulate(*how, "--seed", seed).stdout)[0]["seconds"] for seed in (1, 1, 2))
    assert one == same != other
    assert len(one) == 8


def test_nodes_that_break() -> None:
    how = ("--generate", 6, "--rate", 20, "--cluster", "4x1xv100", "--policy", "first_come", "--json")
    (calm,), (rough,) = (
        json.loads(simulate(*how, "--node-days", days, "--load-seconds", 20).stdout) for days in (0, 0.2)
    )
    assert calm["lost"] == 0 < rough["lost"]
    assert calm["mean_hours"] < rough["mean_hours"]


def test_traces_of_gavels_and_philly_s(rates: Path, tmp_path: Path) -> None:
    gavel = tmp_path / "gavel.trace"
    gavel.write_text("\n".join([gavel_line("LM"), gavel_line("CNN", at=60.0)]))
    philly = tmp_path / "philly.csv"
    philly.write_text("timestamp,duration,num_gpus\n2017-10-03 00:00:00,600,1\n2017-10-03 00:10:00,60,2\n")
    for path, names in ((gavel, {"t0", "t1"}), (philly, {"t0", "t1"})):
        found = simulate(path, "--rates", rates, "--cluster", "1xv100+1xk80", "--json")
        assert found.exit_code == 0, found.output
        assert json.loads(found.stdout)[0]["seconds"].keys() == names


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policy", "max_min_fairnes"], "did you mean 'max_min_fairness'?"),
        (["--cluster", "4xv1000"], "a kind must be one that is at hand"),
        (["--rounds", "0"], "a round must last longer than 0 s"),
        (["--loads", "0"], "a load must be a number above 0"),
        (["--loads", "1,two"], "--loads must be numbers between commas"),
        (["--generate", "5"], "one of the two"),
        (["--node-days", "-1"], "at least 0 days"),
        (["--cluster", "1xt4"], "'first', 'second', 'wide' are without"),
        (["--cluster", "1xv100"], "'wide' is without"),
    ],
)
def test_what_cannot_be_is_refused(trace: Path, arguments: list[str], words: str) -> None:
    found = simulate(trace, "--cluster", "2xv100", *arguments)
    assert found.exit_code == 2
    assert words in found.stderr


def test_nothing_to_simulate() -> None:
    found = simulate("--cluster", "2xv100")
    assert (found.exit_code, "one of the two" in found.stderr) == (2, True)
    assert "at least 1 task" in simulate("--generate", 0).stderr


def test_models_that_nobody_measured_are_named(rates: Path, tmp_path: Path) -> None:
    path = tmp_path / "gavel.trace"
    path.write_text(gavel_line("Mystery"))
    found = simulate(path, "--rates", rates, "--cluster", "1xv100")
    assert found.exit_code == 2
    assert "line 1 of" in found.stderr
    assert "'Mystery' on 1 devices is not" in found.stderr


@pytest.mark.parametrize("text", ["", "hello\n", "a\tb\n", gavel_line("LM").replace("1000", "many") + "\n", "\x00\xff"])
def test_files_that_are_no_traces(rates: Path, tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace"
    path.write_bytes(text.encode("latin-1"))
    found = simulate(path, "--rates", rates, "--cluster", "1xv100")
    assert found.exit_code == 2
    assert found.stderr.startswith("dovetail: ")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"v100": {"LM": {"null": 1.0}}}', '{"v100": {"(\'LM\', 1)": {}}}'])
def test_files_that_are_no_rates(trace: Path, tmp_path: Path, text: str) -> None:
    gavel, path = tmp_path / "gavel.trace", tmp_path / "broken.json"
    gavel.write_text(gavel_line("LM"))
    path.write_text(text)
    found = simulate(gavel, "--rates", path, "--cluster", "1xv100")
    assert found.exit_code == 2
    assert found.stderr.startswith("dovetail: ")


def test_files_that_are_not_there(tmp_path: Path) -> None:
    found = simulate(tmp_path / "nowhere.csv")
    assert (found.exit_code, "nowhere.csv" in found.stderr) == (2, True)
