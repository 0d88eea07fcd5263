"""The runner of all benches goes on after a miss, and names it at the end."""

from pathlib import Path

import all as runner
import pytest

from .test_quick import ROOT, run

MISSING = "print('met     size: 1 (at most 2)')\nprint('MISSED  speed: 1 (at least 2)')\nraise SystemExit(1)\n"


def test_a_miss_and_a_crash_are_listed_and_the_rest_still_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, text in (("slow", MISSING), ("broken", "raise SystemExit(2)\n"), ("good", "print('fine')\n")):
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setattr(runner, "HERE", tmp_path)
    monkeypatch.setattr(runner, "BENCHES", {name: (f"{name}.py",) for name in ("slow", "broken", "good")})
    monkeypatch.setattr("sys.argv", ["all.py"])
    assert runner.main() == 1
    shown = capfd.readouterr().out
    assert shown.index("fine") < shown.index("missed:")
    assert "  slow: speed: 1 (at least 2)" in shown
    assert "  broken: ended with 2 and no bar missed" in shown


def test_every_bench_that_writes_results_is_run() -> None:
    written = {path.name for path in (ROOT / "bench").glob("*.py") if "finish(" in path.read_text()}
    commands = (runner.BENCHES | runner.CUDA).values()
    assert written - {words[0] for words in commands} == {"reporting.py"}


def test_an_unknown_name_is_refused() -> None:
    done = run("bench/all.py", "shares")
    assert done.returncode == 2
    assert "NAME must be one of" in done.stderr
