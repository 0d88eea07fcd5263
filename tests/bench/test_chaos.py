"""The chaos bench runs, and its checker finds what it is there to find: each row breaks one thing in what a sound run
left, and must be told of it."""

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))

from invariants import Step, check, witness_of  # noqa: E402
from soak import Sample, warm_seconds  # noqa: E402

STEPS, SAVE_EVERY = 6, 2


def made(home: Path) -> list[Step]:
    """What a run of one task leaves that was killed once: in its second attempt it takes step 3 again."""
    folder = home / "checkpoints" / "id" / "step-000000006-attempt-0002"
    folder.mkdir(parents=True)
    save_file({"weight": torch.arange(3.0)}, folder / "piece-00000.safetensors")
    index = {"values": {"feed": {"epoch": 1}, "progress": {"points": []}}}
    (folder / "index.json").write_text(json.dumps({"index": json.dumps(index)}))
    database = sqlite3.connect(home / "store.sqlite")
    database.executescript(
        "CREATE TABLE tasks (identity, name); INSERT INTO tasks VALUES ('id', 'a');"
        "CREATE TABLE points (task, name, step, value);"
        "CREATE TABLE events (number INTEGER PRIMARY KEY, kind, task, attempt, at_seconds, data);"
    )
    database.executemany("INSERT INTO points VALUES ('id', 'loss', ?, ?)", [(n, n / 3) for n in range(1, STEPS + 1)])
    for at, kind, attempt, data in (
        (0, "started", 1, {"placement": "p1", "devices": ["n0:0"]}),
        (2, "saved", 1, {"step": 2}),
        (4, "lost", 1, {"reason": "its controller ended"}),
        (5, "started", 2, {"placement": "p2", "devices": ["n0:0"]}),
        (7, "saved", 2, {"step": 4}),
        (9, "saved", 2, {"step": 6}),
        (10, "finished", 2, {"step": 6}),
        (11, "released", 0, {"placement": "p2"}),
    ):
        row = (kind, "id" if attempt else "", attempt, at, json.dumps(data))
        database.execute("INSERT INTO events (kind, task, attempt, at_seconds, data) VALUES (?, ?, ?, ?, ?)", row)
    database.commit()
    database.close()
    first = [Step("a", "b1", n, 1, n - 0.5, (0,)) for n in (1, 2, 3)]
    return first + [Step("a", "b2", n, 2, n + 3, (0,)) for n in (3, 4, 5, 6)]


def broken(folder: Path, *, sql: str = "", witness=lambda steps: steps, seen=(), flip: bool = False) -> list[str]:
    steps = made(folder / "run")
    made(folder / "reference")
    database = sqlite3.connect(folder / "run" / "store.sqlite")
    database.executescript(sql)
    database.close()
    if flip:
        last = folder / "run" / "checkpoints" / "id" / "step-000000006-attempt-0002"
        save_file({"weight": torch.tensor([0.0, 1.0, 2.0000002])}, last / "piece-00000.safetensors")
    return check(
        folder / "run",
        witness(steps),
        reference=folder / "reference",
        save_every=SAVE_EVERY,
        tasks=1,
        steps=STEPS,
        seen=dict(seen),
    ).wrong


def test_a_sound_run_has_nothing_wrong(tmp_path):
    assert broken(tmp_path) == []


def beyond_the_save(steps):
    return steps[:2] + [Step("a", "b2", n, 2, n + 3, (0,)) for n in range(2, STEPS + 1)]


ROWS = [
    ("UPDATE events SET kind = 'warned' WHERE kind = 'finished'", {}, "must finish once, at step 6; it finished at []"),
    (
        "INSERT INTO events (kind, task, attempt, at_seconds, data) VALUES ('finished', 'id', 2, 12, '{\"step\": 6}')",
        {},
        "it finished at [6, 6]",
    ),
    ("DELETE FROM tasks", {}, "1 tasks were described; the store has []"),
    ("DELETE FROM points WHERE step = 4", {}, "1 metrics are not those of the undisturbed run"),
    ("", {"seen": {("id", "loss", 7): 0.5}}, "loss at step 7 was there, then gone or another"),
    ("", {"flip": True}, "1 of 2 parts are not bit-equal, such as tensors/weight"),
    ("", {"witness": lambda steps: steps[:3] + steps[5:]}, "attempt 2 began at 5 after step 3: skipped"),
    ("", {"witness": lambda steps: [*steps[:4], *steps[5:]]}, "attempt 2 took its steps out of order"),
    ("", {"witness": beyond_the_save}, "attempt 2 began at 2, though step 2 was saved"),
    ("", {"witness": lambda steps: steps[:-1]}, "must be trained to step 6; it was to 5"),
    (
        "",
        {"witness": lambda steps: [*steps, Step("x", "b9", 1, 9, 6.5, (0,))]},
        "core 0: processes 2 and 9 trained on it at once",
    ),
    (
        "",
        {"witness": lambda steps: [*steps, Step("a", "b9", 1, 9, 5.5, (1,))]},
        "attempt 2 was trained by two processes",
    ),
    (
        "",
        {"witness": lambda steps: [*steps, Step("a", "b9", 3, 9, 4.5, (1,))]},
        "a: process 9 went on at step 3 in no attempt",
    ),
    (
        "",
        {"witness": lambda steps: [*steps[:2], Step("a", "b1", 3, 1, 6.5, (0,)), *steps[3:]]},
        "n0:0: processes 1 and 2 trained on it at once",
    ),
    (
        "UPDATE events SET data = '{\"reason\": \"it fell silent\"}' WHERE kind = 'lost'",
        {},
        "n0:0: given to p2 while p1 held it",
    ),
]


def held_against_bare(folder: Path, weight: torch.Tensor) -> list[str]:
    steps = made(folder / "run")
    made(folder / "reference")
    saved = folder / "run" / "checkpoints" / "id" / "step-000000006-attempt-0002" / "piece-00000.safetensors"
    for path in (saved, Path(str(saved).replace("/run/", "/reference/"))):
        save_file({"model/weight": torch.arange(3.0)}, path)
    save_file({"weight": weight}, folder / "a.st")
    how = {"reference": folder / "reference", "save_every": SAVE_EVERY, "tasks": 1, "steps": STEPS, "seen": {}}
    return check(folder / "run", steps, bare={"a": folder / "a.st"}, **how).wrong


def test_a_model_that_is_not_the_bare_loops_is_told(tmp_path):
    (tmp_path / "same").mkdir()
    (tmp_path / "other").mkdir()
    assert held_against_bare(tmp_path / "same", torch.arange(3.0)) == []
    off = torch.arange(3.0).nextafter(torch.tensor(9.0))
    assert held_against_bare(tmp_path / "other", off) == [
        "a: 1 of 1 tensors are not the bare loop's, such as ['weight']"
    ]


@pytest.mark.parametrize(("sql", "more", "message"), ROWS, ids=[row[2] for row in ROWS])
def test_each_thing_that_must_not_be_is_told(tmp_path, sql, more, message):
    assert any(message in line for line in broken(tmp_path, sql=sql, **more))


def test_a_line_that_a_killed_writer_left_half_written_spoils_no_other(tmp_path):
    line = '["a", "b1", 1, 7, 2.5, [0]]'
    (tmp_path / "witness").write_text(f'{line}\n["a", "b{line}\n["a", "b2"')
    assert witness_of(tmp_path / "witness") == 2 * [Step("a", "b1", 1, 7, 2.5, (0,))]


@pytest.mark.slow
@pytest.mark.process
def test_a_few_kills_break_nothing():
    environment = os.environ | {"COLUMNS": "200"}
    words = [sys.executable, "bench/chaos.py", "--quick", "--check"]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "p95 seconds" in done.stdout


def test_what_is_loaded_at_first_use_is_no_growth_and_what_grows_after_that_is_seen():
    held = [Sample(float(at), 1 << 20, 9, 1, 2, 0, 40 + (at > 50)) for at in range(100)]
    assert warm_seconds(held, 100.0) == 51.0
    assert warm_seconds(held[60:], 100.0) == 20.0  # nothing was loaded: from a share of the time on


@pytest.mark.slow
@pytest.mark.process
def test_a_short_soak_leaves_nothing_behind():
    environment = os.environ | {"COLUMNS": "200"}
    words = [sys.executable, "bench/soak.py", "--quick", "--check"]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "met     processes left: 0" in done.stdout
