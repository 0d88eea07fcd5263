import os

import pytest

from dovetail.describe import source_digest
from dovetail.describe.source_digest import digest, digest_text

FILE = '''
import torch
from torch import nn
from blocks import Block
import helpers

WIDTH = 8
UNUSED = 1


class Net(nn.Module):
    """A net."""

    def forward(self, x):
        return scale(x) * WIDTH


def scale(x):
    return x * 2


def build(width=WIDTH):
    """Builds it."""
    return Net(), Block(), helpers.size()


sweep = [build(width) for width in (1, 2)]
'''
BLOCKS = "def Block():\n    return inner()\ndef inner():\n    return 1\ndef other():\n    return 1\n"
HELPERS = "def size():\n    return 1\n"


@pytest.fixture
def project(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, ns=(0, write.clock))
        write.clock += 1_000_000_000

    write.clock = 1_000_000_000
    write.file = tmp_path / "sweep.py"
    write.digest = lambda: digest(write.file, "build")
    write("sweep.py", FILE)
    write("blocks.py", BLOCKS)
    write("helpers.py", HELPERS)
    return write


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("WIDTH = 8", "WIDTH = 8  # wide enough"),
        ("return x * 2", "return (x\n        * 2)"),
        ('"""Builds it."""', '"""Builds another."""'),
        ('"""A net."""', ""),
        ("for width in (1, 2)", "for width in (1, 2, 3, 4)"),
        ("UNUSED = 1", "UNUSED = 2\nimport os"),
    ],
)
def test_comments_formatting_docstrings_and_the_sweep_do_not_count(project, before, after):
    first = project.digest()
    assert before in FILE
    project("sweep.py", FILE.replace(before, after))
    assert project.digest() == first


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("return scale(x) * WIDTH", "return scale(x) + WIDTH"),
        ("return x * 2", "return x * 3"),
        ("WIDTH = 8", "WIDTH = 9"),
        ("width=WIDTH", "width=4"),
        ("from blocks import Block", "from torch import Block"),
    ],
)
def test_what_the_program_reaches_does_count(project, before, after):
    first = project.digest()
    assert before in FILE
    project("sweep.py", FILE.replace(before, after))
    assert project.digest() != first


def test_files_beside_it_count_as_far_as_they_are_reached(project):
    first = project.digest()
    project("blocks.py", BLOCKS.replace("def other():\n    return 1", "def other():\n    return 2"))
    assert project.digest() == first
    project("blocks.py", BLOCKS.replace("def inner():\n    return 1", "def inner():\n    return 2"))
    second = project.digest()
    assert second != first
    project("helpers.py", HELPERS.replace("1", "2"))
    assert project.digest() != second


IMPORTS = {
    "a name": ("from x import y\ndef build(): return y()\n", {"x.py": "def y(): return 1\n"}),
    "a module": ("import x\ndef build(): return x.y()\n", {"x.py": "def y(): return 1\n"}),
    "under another name": ("import x as z\ndef build(): return z.y()\n", {"x.py": "def y(): return 1\n"}),
    "inside the function": ("def build():\n    from x import y\n    return y()\n", {"x.py": "def y(): return 1\n"}),
    "a module inside the function": ("def build():\n    import x\n    return x.y()\n", {"x.py": "def y(): return 1\n"}),
    "everything": ("from x import *\ndef build(): return y()\n", {"x.py": "def y(): return 1\n"}),
    "as a fallback": (
        "try:\n    import nothing\nexcept ImportError:\n    from x import y\ndef build(): return y()\n",
        {"x.py": "def y(): return 1\n"},
    ),
    "a package's name": (
        "from p import y\ndef build(): return y()\n",
        {"p/sub.py": "def y(): return 1\n", "p/__init__.py": "from .sub import y\n"},
    ),
    "a package's module": (
        "from p import sub\ndef build(): return sub.y()\n",
        {"p/sub.py": "def y(): return 1\n", "p/__init__.py": ""},
    ),
    "a module of a folder": ("from p import sub\ndef build(): return sub.y()\n", {"p/sub.py": "def y(): return 1\n"}),
    "a dotted module": (
        "import p.sub\ndef build(): return p.sub.y()\n",
        {"p/sub.py": "def y(): return 1\n", "p/__init__.py": ""},
    ),
    "from one module of a package to another": (
        "from p.sub import y\ndef build(): return y()\n",
        {
            "p/deep.py": "def z(): return 1\n",
            "p/sub.py": "from p.deep import z\ndef y(): return z()\n",
            "p/__init__.py": "",
        },
    ),
    "the same, relative": (
        "from p.sub import y\ndef build(): return y()\n",
        {"p/deep.py": "def z(): return 1\n", "p/sub.py": "from . import deep\ndef y(): return deep.z()\n"},
    ),
    "in a circle": (
        "import x\ndef build(): return x.y()\n",
        {"x.py": "import sweep\ndef y(): return sweep.build and 1\n"},
    ),
}


@pytest.mark.parametrize("way", sorted(IMPORTS))
def test_however_it_is_imported(project, way):
    text, files = IMPORTS[way]
    project("sweep.py", text)
    for name, content in files.items():
        project(name, content)
    first = project.digest()
    name = next(iter(files))
    project(name, files[name].replace("1", "2"))
    assert project.digest() != first


def test_code_is_followed_again_only_where_something_that_was_looked_at_has_changed(project, monkeypatch):
    before, followed = project.digest(), []
    collect = source_digest._ReachedCode.collect
    monkeypatch.setattr(source_digest._ReachedCode, "collect", lambda *given: (followed.append(1), collect(*given)))
    assert project.digest() == before
    assert not followed
    project("helpers.py", HELPERS + "# the same to whoever runs it\n")
    assert project.digest() == before
    assert followed


def test_a_module_that_is_there_now_where_there_was_none_is_found(project, tmp_path):
    project("sweep.py", "import later\ndef build():\n    return later.size()\n")
    before = project.digest()
    project("later/__init__.py", HELPERS)
    package = project.digest()
    project("later.py", HELPERS + "MORE = 1\n")  # comes before the package
    found = project.digest()
    (tmp_path / "later.py").unlink()
    assert len({before, package, found}) == 3
    assert project.digest() == package


def test_a_link_that_leads_elsewhere_by_now_is_followed_there(project, tmp_path):
    for name, size in (("one", 1), ("two", 2)):
        project(f"{name}/helpers.py", HELPERS.replace("1", str(size)))
    (tmp_path / "helpers.py").unlink()
    (tmp_path / "helpers.py").symlink_to("one/helpers.py")
    before = project.digest()
    (tmp_path / "helpers.py").unlink()
    (tmp_path / "helpers.py").symlink_to("two/helpers.py")
    assert project.digest() != before


def test_text_that_stands_alone():
    assert digest_text("x = 1") == digest_text("x=1 # one")
    assert digest_text("x = 1") != digest_text("x = 2")
