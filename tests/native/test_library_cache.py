"""Libraries are kept by what they were made of, and whatever happens to the folder a library comes of it or none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.native import cached_library, library_cache

SOURCE = "int number(void) { return %d; }"


def test_a_second_process_does_not_compile(tmp_path, monkeypatch):
    assert cached_library(SOURCE % 1, folder=tmp_path).number() == 1
    (kept,) = tmp_path.iterdir()
    monkeypatch.setattr(library_cache, "_compile", None)
    assert cached_library(SOURCE % 1, folder=tmp_path).number() == 1
    assert kept.suffix == ".so"


def test_a_damaged_file_is_made_anew(tmp_path):
    cached_library(SOURCE % 2, folder=tmp_path)
    (kept,) = tmp_path.iterdir()
    kept.unlink()
    kept.write_bytes(b"\x7fELF cut short")
    assert cached_library(SOURCE % 2, folder=tmp_path).number() == 2


def test_a_folder_that_cannot_be_written_or_is_no_folder(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("")
    assert cached_library(SOURCE % 3, folder=file / "below").number() == 3
    monkeypatch.setenv("DOVETAIL_CACHE", str(file))
    assert library_cache._private_folder() is None
    assert cached_library(SOURCE % 4).number() == 4


def test_a_folder_that_others_may_write_is_not_trusted(tmp_path, monkeypatch):
    monkeypatch.setenv("DOVETAIL_CACHE", str(tmp_path))
    folder = library_cache._private_folder()
    assert folder is not None
    folder.chmod(0o777)
    assert library_cache._private_folder() is None


@pytest.mark.parametrize("script", ["exit 1", "echo > /dev/null", "exec sleep 60"])
def test_a_compiler_that_fails_does_nothing_or_hangs(tmp_path, monkeypatch, script):
    compiler = tmp_path / "cc"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(library_cache, "_COMPILE_SECONDS", 0.5)
    assert cached_library(SOURCE % 5, folder=tmp_path) is None


@pytest.mark.process
def test_two_processes_compile_the_same(tmp_path):
    code = (
        "from pathlib import Path; from dovetail.native import cached_library; import sys;"
        f"print(cached_library({SOURCE % 6!r}, folder=Path(sys.argv[1])).number())"
    )
    root = Path(__file__).parents[2]
    both = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=root)
        for _ in range(2)
    ]
    assert [process.communicate()[0].strip() for process in both] == ["6", "6"]
    assert len(list(tmp_path.iterdir())) == 1
