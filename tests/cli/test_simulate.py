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
    for name in ("Tasks that ended within", "Devices in use", "Fairness"):
        assert f'"heading":"{name}' in text
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


def test_a_trace_of_gavels_with_seven_fields_says_what_was_rounded(rates: Path, tmp_path: Path) -> None:
    path = tmp_path / "msr.trace"
    path.write_text("LM\tcommand\t-n\t1\t1000\t0.0\t1\nCNN\tcommand\t-n\t1\t1000\t60.0\t8\n")
    found = simulate(path, "--rates", rates, "--cluster", "1xv100+1xk80", "--json")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)[0]["seconds"].keys() == {"t0", "t1"}
    assert "1 of 2 tasks ask for more devices than their model was measured on" in found.stderr


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


def test_pairs_measured_and_predicted_share_devices(tmp_path: Path) -> None:
    models = ("LM", "CNN", "RNN")
    table: dict[str, dict[str, dict[str, object]]] = {"v100": {f"('{model}', 1)": {"null": 2.0} for model in models}}
    for model, other in (("CNN", "CNN"), ("CNN", "LM"), ("LM", "LM")):
        table["v100"][f"('{model}', 1)"][f"('{other}', 1)"] = [1.8, 1.8]
    rates = tmp_path / "pairs.json"
    rates.write_text(json.dumps(table))
    trace = tmp_path / "three.trace"
    trace.write_text("\n".join(gavel_line(model) for model in ("LM", "CNN", "RNN")))
    how = (trace, "--rates", rates, "--cluster", "1xv100", "--policy", "makespan", "--json", "--rounds", 60)
    hours = {}
    for flag in ((), ("--packed",), ("--predicted",)):
        found = simulate(*how, *flag)
        assert found.exit_code == 0, found.output
        (case,) = json.loads(found.stdout)
        hours[flag] = case["makespan_hours"]
    assert hours["--predicted",] < hours["--packed",] < hours[()]
    assert "pairs are predicted; of the measured pairs half would be less than" in found.stderr


def test_predictions_need_pairs_that_were_measured(trace: Path) -> None:
    found = simulate(trace, "--cluster", "2xv100", "--predicted")
    assert found.exit_code == 2
    assert "pairs must be predicted from some that were measured together; there are none" in found.stderr


def test_prices_make_policies_that_count_money_possible(trace: Path) -> None:
    how = (trace, "--cluster", "2xv100+2xk80", "--policy", "max_min_fairness,spend", "--json")
    refused = simulate(*how)
    assert refused.exit_code == 2
    assert "must know a price above 0 of every kind in use; 'k80', 'v100' has none" in refused.stderr
    found = simulate(*how, "--price", "v100=2.48", "--price", "k80=0.1")
    assert found.exit_code == 0, found.output
    fair, cheap = (case["spend"] for case in json.loads(found.stdout))
    assert 0 < cheap < fair


def test_entities_have_their_parts(tmp_path: Path) -> None:
    path = tmp_path / "teams.csv"
    lines = [f"v{n},0,3600,vision,1" for n in range(3)] + ["l0,0,3600,language,1"]
    path.write_text("\n".join(["task,at_seconds,steps,entity,v100", *lines]))
    how = (path, "--cluster", "1xv100", "--policy", "hierarchical", "--json")
    alike, favoured = (simulate(*how, *more) for more in ((), ("--entity", "language=9")))
    assert alike.exit_code == favoured.exit_code == 0, favoured.output
    # With half of the device it ends after about two hours, with nine tenths soon after one.
    ends = [json.loads(found.stdout)[0]["seconds"]["l0"] for found in (alike, favoured)]
    assert 1.8 < ends[0] / 3600 < 2.3
    assert 1.0 <= ends[1] / 3600 < 1.3
    strange = simulate(*how, "--entity", "speech=2")
    assert strange.exit_code == 2
    assert "an entity must have tasks in the trace; 'speech' is without" in strange.stderr
