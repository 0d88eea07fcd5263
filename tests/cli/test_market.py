"""`simulate --market` and `plan --market`: what they say and what they refuse."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dovetail.cli.app import app
from dovetail.describe.markets import show_time
from tests.bench.test_quick import SWEEP

HEAD = "time,kind,zone,market,price\n"


def table(path: Path, *, hours: int = 72, kinds: tuple[str, ...] = ("v100",)) -> Path:
    lines = []
    for hour in range(hours):
        at = show_time(1735689600.0 + hour * 3600)
        for kind in kinds:
            gone = hour % 7 == 3
            lines.append(f"{at},{kind},a,spot,{'' if gone else 1 + hour % 5 / 10}")
            lines.append(f"{at},{kind},b,spot,1.2")
            lines.append(f"{at},{kind},a,on demand,3")
    path.write_text(HEAD + "\n".join(lines) + "\n")
    return path


def invoke(*words: object) -> Result:
    return CliRunner().invoke(app, list(map(str, words)), env={"COLUMNS": "200"})


def test_every_rule_has_a_line_and_what_looking_ahead_adds_is_said(tmp_path: Path) -> None:
    found = invoke("simulate", "--market", table(tmp_path / "p.csv"), "--work", "6h", "--deadline", "9h")
    assert found.exit_code == 0, found.output
    for words in ("on demand", "cheapest at each moment", "dovetail, looking ahead", "looking ahead adds", "is kept"):
        assert words in found.stdout


def test_the_same_as_json(tmp_path: Path) -> None:
    path = table(tmp_path / "p.csv", kinds=("v100", "k80"))
    words = ("--work", "6h", "--deadline", "9h", "--deadline", "12h", "--speed", "v100=1", "--speed", "k80=0.25")
    found = invoke("simulate", "--market", path, *words, "--every", "3h", "--json")
    assert found.exit_code == 0, found.output
    first, second = json.loads(found.stdout)
    assert (first["deadline_seconds"], second["deadline_seconds"]) == (9 * 3600, 12 * 3600)
    assert first["runs"] == (71 - 9) // 3 + 1
    for case in (first, second):
        rules = case["rules"]
        assert rules["dovetail"]["late"] == 0
        assert rules["free"]["spend"] <= rules["dovetail"]["spend"] <= rules["cheapest"]["spend"]
        assert rules["dovetail"]["spend"] < rules["on_demand"]["spend"]
        assert case["added"] == pytest.approx(1 - rules["dovetail"]["spend"] / rules["cheapest"]["spend"])


def test_a_pace_makes_kinds_alike_but_for_their_price(tmp_path: Path) -> None:
    path = table(tmp_path / "p.csv", kinds=("v100", "k80"))
    words = ("--work", "50h", "--speed", "v100=1", "--speed", "k80=0.5", "--same-pace", "--move", "0s", "--json")
    (case,) = json.loads(invoke("simulate", "--market", path, *words).stdout)
    alone = table(tmp_path / "alone.csv")
    (other,) = json.loads(invoke("simulate", "--market", alone, "--work", "50h", "--move", "0s", "--json").stdout)
    assert case["rules"]["dovetail"]["spend"] == pytest.approx(other["rules"]["dovetail"]["spend"])
    assert case["deadline_seconds"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "must be told how long the work takes on a device of speed 1: --work 24h"),
        (("--work", "soon"), "--work: a time must be a number with units"),
        (
            ("--work", "6h", "--deadline", "6h"),
            "6 h 0 min cannot: the fastest offer, 1 × v100 in a, on demand, takes 6 h 10",
        ),
        (("--work", "6h", "--deadline", "100d"), "a history must be longer than the deadline to replay it"),
        (("--work", "100d"), "without a deadline the work must end within the history"),
        (
            ("--work", "6h", "--speed", "v10=1"),
            "--speed must be at least 0 and of a kind of the market, one of ['v100']",
        ),
        (("--work", "6h", "--speed", "v100=-1"), "--speed must be at least 0"),
        (("--work", "6h", "--generate", "5"), "simulate must be given a trace of tasks or --market, one of the two"),
    ],
)
def test_what_simulate_refuses(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    found = invoke("simulate", "--market", table(tmp_path / "p.csv"), *words)
    assert found.exit_code == 2
    assert said in found.stderr


def test_kinds_of_unknown_speed_are_refused(tmp_path: Path) -> None:
    path = table(tmp_path / "p.csv", kinds=("v100", "k80"))
    found = invoke("simulate", "--market", path, "--work", "6h", "--speed", "v100=1")
    assert found.exit_code == 2
    assert "kinds of a market must be known, v100; found k80. Give --speed KIND=NUMBER" in found.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--market must come with an objective of money, --objective spend:deadline=8h, got 'makespan'"),
        (("--objective", "spend:deadline=8h"), "prices must be of the last 36 h 0 min; the newest is of 2025-01-03T23"),
        (("--objective", "spend:deadline=8h", "--at", "noon"), "--at: a time must be written as 2023-01-01T00:00:00Z"),
        (
            ("--objective", "spend:deadline=8h", "--at", "2024-01-01T00:00:00Z"),
            "--at must be a time of the price history; 2024-01-01T00:00:00Z is not",
        ),
        (
            ("--objective", "spend:deadline=8h", "--at", "2025-01-02T00:00:00Z", "--cluster", "1xa100"),
            "kinds of --cluster must have prices in the market, ['v100']; 'a100' has none",
        ),
        (("--objective", "spend:deadline=8h", "--price", "v100=1"), "leave out --weight, --deadline, --price"),
    ],
)
def test_what_plan_refuses(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "sweep.py").write_text(SWEEP)
    found = invoke("plan", tmp_path / "sweep.py", "--market", table(tmp_path / "p.csv"), *words)
    assert found.exit_code == 2
    assert said in found.stderr


def test_plan_refuses_kinds_that_it_cannot_predict(tmp_path: Path) -> None:
    (tmp_path / "sweep.py").write_text(SWEEP)
    words = ("--objective", "spend:deadline=8h", "--at", "2025-01-02T00:00:00Z")
    path = table(tmp_path / "p.csv", kinds=("abacus",))
    found = invoke("plan", tmp_path / "sweep.py", "--market", path, *words)
    assert found.exit_code == 2
    assert "found abacus. Write kinds as Dovetail does" in found.stderr


@pytest.mark.process
def test_a_sweep_is_planned_on_the_kinds_of_a_market(tmp_path: Path) -> None:
    (tmp_path / "sweep.py").write_text(SWEEP.replace("epochs=4", "epochs=400_000"))
    path = table(tmp_path / "p.csv", kinds=("v100", "a10"))
    words = ["plan", tmp_path / "sweep.py", "--market", path, "--at", "2025-01-03T06:00:00Z", "--store", tmp_path / "s"]
    words += ["--cluster", "2xv100+1xa10"]
    shown = invoke(*words, "--objective", "spend:deadline=8h", "--json")
    assert shown.exit_code == 0, shown.output
    plan = json.loads(shown.stdout)
    assert plan["now"]["market"]["spot"]
    assert plan["replays"] > 10
    assert 0 < plan["spend"] < plan["on_demand_spend"]
    assert 0.4 < plan["saved_over_on_demand"] < 0.8
    late = invoke(*words, "--objective", "spend:deadline=11min", "--move", "10min")
    assert late.exit_code == 2
    assert "a deadline must be one that can be met on demand; 11 min 0 s cannot" in late.stderr


def test_a_daemon_that_rents_is_told_what_it_lacks(tmp_path):
    found = CliRunner().invoke(app, ["daemon", "--store", str(tmp_path), "--provision", "true"])
    assert found.exit_code == 2
    assert "to rent nodes a daemon must be told prices (--market prices.csv)" in " ".join(found.output.split())
