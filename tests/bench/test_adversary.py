"""The adversary runs, and finds what is broken."""

import os
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import adversary
import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.process
def test_a_few_attacks_are_held() -> None:
    words = [sys.executable, "bench/adversary.py", "--quick", "--check"]
    done = subprocess.run(words, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "met     attacks that broke something: 0" in done.stdout


def test_a_writer_that_follows_links_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def naive(path: Path, content: bytes) -> None:
        path.write_bytes(content)

    (tmp_path / "finished").mkdir()
    ground = SimpleNamespace(folder=tmp_path, finished=tmp_path / "finished", copy=lambda of: _fresh(tmp_path))
    said = [adversary.tried_once(adversary.planted_link, random.Random(n), ground) for n in range(20)]
    assert said == [""] * 20
    monkeypatch.setattr(adversary, "write_atomically", naive)
    said = [adversary.tried_once(adversary.planted_link, random.Random(n), ground) for n in range(20, 40)]
    assert any("what it points to is gone or changed" in each for each in said)


def test_a_secret_that_is_shown_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not adversary.tried_once(adversary.undressed_secret, random.Random(0), None)
    monkeypatch.setattr(adversary, "Redactor", lambda parameters: lambda text: text)
    assert "was shown" in adversary.tried_once(adversary.undressed_secret, random.Random(0), None)


def _fresh(folder: Path) -> Path:
    made = folder / f"copy-{len(list(folder.iterdir()))}"
    made.mkdir()
    return made
