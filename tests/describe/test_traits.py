"""Who a program is that no file holds: all that it reaches in `__main__`, and nothing else."""

import functools
import re
import subprocess
import sys

import numpy
import pytest

from dovetail.describe.traits import _traits, digest_of

CELL = """
import functools
import numpy as np
import torch

RATE, DEPTH, NOTHING = 0.1, 2, None
SETTINGS = {"width": [8, 16], "names": {"a", "b"}}
ARRAY, TENSOR = np.arange(3.0), torch.zeros(2)
unrelated, shape, log = 1, 1, []


class Base:
    scale = 1.0

    def scaled(self, x):
        return x * RATE


class Net(Base):
    @staticmethod
    def deep(x):
        return x * DEPTH


class Point:
    def __init__(self, x):
        self.x = x


POINT = Point(1)


@functools.cache
def cached():
    return "one"


def inner(x):
    return lambda: (x.shape, "inner")


def middle(x):
    return inner(x), NOTHING


def program(width=1):
    '''What it builds.'''
    import helper_beside
    return Net(), middle(SETTINGS), ARRAY, TENSOR, POINT, cached(), shape_of
shape_of = 1
"""


def program(edits=(), *, then="", name="__main__"):
    """The digest of the program of a cell, edited, run like a notebook's, and changed afterwards by another cell."""
    text = CELL
    for before, after in edits:
        assert before in text
        text = text.replace(before, after)
    scope = {"__name__": name}
    exec(compile(text, "<stdin>", "exec"), scope)
    exec(compile(then, "<stdin>", "exec"), scope)
    return digest_of(scope["program"])


@pytest.mark.parametrize(
    "then",
    [
        "SETTINGS['width'].append(32)",
        "SETTINGS['names'].add('c')",
        "ARRAY[1] = 7",
        "TENSOR += 1",
        "TENSOR = TENSOR.double()",
        "RATE = 0.2",
        "DEPTH = 3",
        "NOTHING = 0",
        "POINT.x = 2",
        "Base.scale = 2.0",
        "shape_of = True",
    ],
)
def test_another_value_is_another_program(then):
    assert program(then=then) != program()


@pytest.mark.parametrize(
    "edit",
    [
        ('"inner"', '"outer"'),
        ("x * RATE", "x / RATE"),
        ("class Net(Base)", "class Net(Base, dict)"),
        ("@staticmethod\n    def deep(x)", "@classmethod\n    def deep(cls, x)"),
        ('return "one"', 'return "two"'),
        ("return inner(x), NOTHING", "return inner(x), None"),
        ("def program(width=1)", "def program(width=2)"),
    ],
)
def test_other_code_is_another_program(edit):
    assert program([edit]) != program()


@pytest.mark.parametrize("then", ["unrelated = 2", "shape = 2", "log.append(1)", "cached()", "import json"])
def test_what_a_program_does_not_reach_is_not_part_of_it(then):
    # `shape` is read as an attribute in the program, never as a global.
    assert program(then=then) == program()


@pytest.mark.parametrize("then", ["", "POINT.__reduce_ex__(4)", "Point.__annotations__"])
def test_a_program_with_an_object_is_the_same_however_often_it_is_asked(then):
    scope = {"__name__": "__main__"}
    exec(compile(CELL, "<stdin>", "exec"), scope)
    before = digest_of(scope["program"])
    exec(compile(then, "<stdin>", "exec"), scope)
    assert digest_of(scope["program"]) == before


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("re.compile('a')", "re.compile('b')"),
        ("numpy.tanh", "numpy.sin"),
        ("{1: 2}.keys()", "{2: 2}.keys()"),
        ("{1: 2}.values()", "{1: 3}.values()"),
        ("int | str", "int | float"),
        ("compile('1', 'f', 'eval')", "compile('2', 'f', 'eval')"),
        ("open('/dev/null', 'w')", "open('/dev/full', 'w')"),
    ],
)
def test_values_that_cannot_say_themselves_what_they_are_are_told_apart(one, other):
    def digest(text):
        value = eval(text, {"re": re, "numpy": numpy})
        try:
            return digest_of(functools.partial(print, value))
        finally:
            value.close() if hasattr(value, "close") else None

    assert digest(one) == digest(one) != digest(other)


def test_plain_items_of_a_set_need_no_copy_of_what_was_seen():
    class Seen(dict):
        def __iter__(self):
            raise AssertionError("copied")

        keys = __iter__

    assert len(list(_traits({1, "a", None}, Seen()))) == 4


def test_the_source_of_the_users_modules_counts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for text in ("VALUE = 1", "VALUE = 1  # the same", "VALUE = 2, 2"):
        (tmp_path / "helper_beside.py").write_text(text)
        found.append(program())
    assert found[0] == found[1] != found[2]


def test_a_function_of_the_users_module_counts_with_all_that_it_reaches(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "helper_of_build.py"
    file.write_text("WIDTH = 1\ndef build():\n    return WIDTH\n")
    scope = {"__name__": "__main__"}
    exec("from helper_of_build import build\ndef program():\n    return build()\n", scope)
    before = digest_of(scope["program"])
    file.write_text("WIDTH = 22\ndef build():\n    return WIDTH\n")
    assert digest_of(scope["program"]) != before


def test_equal_in_every_process():
    code = f"{CELL}\nfrom dovetail.describe.traits import digest_of\nprint(digest_of(program))"
    found = {
        subprocess.run(
            [sys.executable, "-"], input=code, text=True, capture_output=True, env={"PYTHONHASHSEED": seed}, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_swapped_values_are_another_program():
    assert program(then="RATE, DEPTH = DEPTH, RATE") != program()


def test_a_value_that_cannot_be_taken_apart_is_left_to_whoever_carries_the_program():
    scope = {"__name__": "__main__"}
    exec("import threading\nLOCK = threading.Lock()\ndef program():\n    return LOCK\n", scope)
    assert digest_of(scope["program"])
