"""A C file becomes a library, once a process; without a compiler, or where it does not compile, there is none."""

import shutil

import pytest

from dovetail.native import load_library

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@needs_compiler
def test_a_library_is_compiled_once(tmp_path):
    source = tmp_path / "twice.c"
    source.write_text("int twice(int x) { return 2 * x; }")
    library = load_library(source)
    assert library is not None
    assert library.twice(21) == 42
    source.unlink()
    assert load_library(source) is library


@needs_compiler
def test_what_does_not_compile_is_none(tmp_path):
    source = tmp_path / "broken.c"
    source.write_text("int twice(int x) {")
    assert load_library(source) is None


def test_without_a_compiler_there_is_none(tmp_path, monkeypatch):
    source = tmp_path / "thrice.c"
    source.write_text("int thrice(int x) { return 3 * x; }")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert load_library(source) is None
