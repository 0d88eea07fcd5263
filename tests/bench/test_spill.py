"""The bench of spilled training: its rows, its bars, and its parts at a toy size."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import spill

    return spill


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "bench/spill.py", *words],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "250"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def figures(**more: Any) -> dict[str, Any]:
    """What a part gives that keeps all its promises."""
    forecast = {"step_seconds": 1.05, "device_bytes": 95}
    peaks = {"peak_allocated_bytes": 100, "peak_reserved_bytes": 110, "budget_bytes": 120}
    return {"tokens": 100, "seconds": 1.0, "tokens_per_second": 100.0, "forecast": forecast, **peaks, **more}


@pytest.mark.slow
@pytest.mark.process
def test_ours_the_peer_and_resident_training_take_the_same_steps(tmp_path: Path) -> None:
    done = run("24g-b8", "--quick", OUT=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tokens a second, ours over FSDP2" in done.stdout
    parts = _parts(tmp_path, "24g-b8")
    assert set(parts) == {"ours, 24 GiB", "FSDP2, 24 GiB", "resident"}
    ours, peer, resident = (parts[name]["losses"] for name in ("ours, 24 GiB", "FSDP2, 24 GiB", "resident"))
    assert ours == pytest.approx(peer, rel=1e-4)
    assert ours == pytest.approx(resident, rel=1e-4)
    assert ours[-1] < ours[0]


@pytest.mark.process
@pytest.mark.slow
def test_models_interleave_turn_by_turn_beside_one_alone(tmp_path: Path) -> None:
    done = run("interleave", "--quick", "--only", "two by two", OUT=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    parts = _parts(tmp_path, "interleave")
    assert [part["models"] for part in parts.values()] == [2, 1, 2, 1]
    for part in parts.values():
        assert len(part["stretches"]) == 2
        assert part["forecast"]["step_seconds"] > 0
        assert part["losses"][-1] < part["losses"][0]
    assert "free, two by two: tokens a second over one after another" in done.stdout


@pytest.mark.slow
@pytest.mark.process
def test_a_part_that_fails_leaves_the_others_their_table() -> None:
    done = run("24g-b8", "--quick", "--only", "24 GiB", "--knobs", '{"device_bytes": 1}')
    assert done.returncode == 2, done.stdout + done.stderr
    assert "ours, 24 GiB: failed: DoesNotFit" in done.stdout
    assert "FSDP2, 24 GiB: " in done.stdout
    assert "MISSED  tokens a second, ours over FSDP2: nan" in done.stdout


def _parts(folder: Path, row: str) -> dict[str, Any]:
    return dict(json.loads((folder / f"spill-{row}-parts.json").read_text()))


def test_a_row_without_a_device_says_so() -> None:
    done = run("8g-b8", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1
    assert "must run on a machine with a CUDA device" in done.stderr


def test_every_bar_of_every_row_is_missed_where_nothing_was_measured(bench: ModuleType) -> None:
    for row in bench.rows().values():
        assert not any(bar.met() for bar in row.bars({part.name: {"failed": "x"} for part in row.parts}))


def test_predictions_and_budgets_are_held(bench: ModuleType) -> None:
    assert all(bar.met() for bar in bench.kept({"a": figures()}, "a"))
    late = figures(forecast={"step_seconds": 1.2, "device_bytes": 80})
    assert [bar.met() for bar in bench.kept({"a": late}, "a")] == [False, False, True]
    assert [bar.met() for bar in bench.kept({"a": figures(budget_bytes=109)}, "a")] == [True, True, False]


def ways(word: str, at_once: float, by_two: float, **more: Any) -> dict[str, Any]:
    speeds = {"four at once": at_once, "two by two": by_two}
    alone = {f"{word}, alone beside {way}": figures() for way in speeds}
    return alone | {f"{word}, {way}": figures(tokens_per_second=speed, **more) for way, speed in speeds.items()}


def test_interleaving_is_compared_with_one_alone_beside_it(bench: ModuleType) -> None:
    found = ways("free", 90.0, 101.0)
    found["free, alone beside four at once"] = figures(tokens_per_second=60.0)
    assert bench.gains(found, "free") == {"free, four at once": pytest.approx(1.5), "free, two by two": 1.01}
    del found["free, alone beside two by two"]
    assert list(bench.gains(found, "free")) == ["free, four at once"]
    assert not bench.gains(found, "clipped")


def test_free_interleaving_must_be_no_slower_in_its_better_way(bench: ModuleType) -> None:
    def bar(*speeds: float) -> Any:
        return bench.rows()["interleave"].bars(ways("free", *speeds))[1]

    assert bar(90.0, 101.0).met()
    assert bar(90.0, 101.0).name.startswith("free, two by two")
    assert not bar(99.0, 95.0).met()


def test_clipped_interleaving_may_meet_its_bar_by_gain_or_by_roofline(bench: ModuleType) -> None:
    def met(speed: float, share: float | None) -> bool:
        found = ways("clipped", speed, speed, roofline_seconds=share)
        return bool(bench.rows()["interleave"].bars(found)[0].met())

    assert met(125.0, None)
    assert met(110.0, 0.85)
    assert not met(124.0, 0.84)


@pytest.mark.parametrize("limit", [1, 30, 44])
def test_the_deepest_model_is_the_deepest_not_refused(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    part = bench.rows()["largest"].parts[0]
    block = bench.sizes(part)[1]

    def in_turn(parts: list[Any], *, limit_seconds: float) -> list[dict[str, Any]]:
        (tried,) = parts
        if tried.depth > limit:
            wanting = int((tried.depth - limit - 0.5) * block * bench.BYTES_EACH)
            return [{"failed": "needs more; there is less", "wanting_bytes": wanting}]
        return [{"depth": tried.depth}]

    monkeypatch.setattr(bench, "in_turn", in_turn)
    found = bench.descend(part, limit_seconds=60.0)
    assert found["depth"] == limit
    assert found["note"].startswith(f"{limit} blocks; ")
    assert found["note"].endswith("were refused: needs more")


def test_a_depth_that_was_asked_for_is_tried_alone(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    part = bench.dataclasses.replace(bench.rows()["largest"].parts[0], depth=99)
    monkeypatch.setattr(bench, "in_turn", lambda parts, limit_seconds: [{"failed": "no", "wanting_bytes": 1}])
    assert bench.descend(part, limit_seconds=60.0)["note"] == "99 blocks"


def test_a_refusal_inside_a_step_still_says_what_is_wanting(bench: ModuleType) -> None:
    from dovetail.planning.techniques.spill import DoesNotFit

    wrapped = RuntimeError("step 1 failed")
    wrapped.__cause__ = DoesNotFit("needs 9 B; there are 8 B", 9, 8)
    assert bench.refusal(wrapped) == {"wanting_bytes": 1}
    assert bench.refusal(ValueError("another")) == {}
