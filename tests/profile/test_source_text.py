import functools
import importlib
import re
import sys

import torch

from dovetail.profile.source_text import Sources
from tests.describe.test_installed import install


def text_of(thing):
    sources = Sources()
    sources.add(thing)
    return repr(sources.texts())


def executed(code, **names):
    """A function without source, as one typed into a prompt."""
    space = {"__name__": "typed", **names}
    exec(code, space)
    return space["f"]


def closing_over(value):
    rate = value

    def f(model, batch):
        return rate

    return f


def test_without_source_the_bytecode_tells():
    assert text_of(executed("def f(x): return x + 1")) == text_of(executed("def f(x):\n    return x + 1"))
    assert text_of(executed("def f(x): return x + 1")) != text_of(executed("def f(x): return x - 1"))
    assert text_of(executed("def f(x): return x + 1")) != text_of(executed("def f(x): return x + 2"))


def test_functions_are_followed_into_what_they_call():
    inner = [executed("def f(x): return x"), executed("def f(x): return -x")]
    outer = [executed("def f(x): return (lambda: g(x))()", g=each) for each in inner]
    assert text_of(outer[0]) != text_of(outer[1])


def test_classes_by_their_attributes_too():
    bodies = ["class f:\n    width = 4", "class f:\n    width = 8"]
    one, other = (executed(body, __file__="typed.py") for body in bodies)
    assert text_of(one()) != text_of(other())


def test_rates_do_not_count_and_amounts_do():
    assert text_of(closing_over(0.1)) == text_of(closing_over(0.2))
    assert text_of(closing_over(3)) != text_of(closing_over(4))
    assert text_of(closing_over(torch.zeros(2))) == text_of(closing_over(torch.ones(2)))
    assert text_of(closing_over(torch.zeros(2))) != text_of(closing_over(torch.zeros(3)))
    assert text_of(functools.partial(closing_over, value=1)) != text_of(functools.partial(closing_over, value=2))


def test_no_addresses_and_functions_that_call_themselves():
    def f(x):
        return f(x - 1) + id(print)

    assert not re.search("0x[0-9a-f]{4}", text_of(f))
    assert text_of(torch.no_grad()(f)) == text_of(f)


def test_of_a_package_installed_elsewhere_nothing_counts_that_a_process_makes_anew(tmp_path, monkeypatch):
    file = install(tmp_path, "hub_elsewhere")
    file.write_text(
        "import uuid\nSESSION = uuid.uuid4().hex\ndef f(x):\n    return SESSION and helper(x)\ndef helper(x): ...\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    hub = importlib.import_module("hub_elsewhere")
    before = text_of(hub.f)
    assert "helper" not in [name for name, *_ in eval(before)], "it counts by its version, and is not followed"
    hub.SESSION = "that of another process"
    assert text_of(executed("def f(x): return hub.f(x)", hub=hub)).count("process") == 0
    assert text_of(hub.f) == before


def installed_module(folder, name, text, monkeypatch):
    install(folder, name).write_text(text)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    return importlib.import_module(name)


def test_functions_of_one_installed_file_differ_by_where_they_are_and_lambdas_by_what_they_do(tmp_path, monkeypatch):
    hub = installed_module(
        tmp_path,
        "hub_of_makers",
        "BOTH = (lambda x: x + 1), (lambda x: x - 1)\n"
        "def make(negative):\n"
        "    if negative:\n"
        "        def f(x): return -x\n"
        "    else:\n"
        "        def f(x): return x\n"
        "    return f\n",
        monkeypatch,
    )
    assert text_of(hub.make(True)) == text_of(hub.make(True))
    assert len({text_of(each) for each in (*hub.BOTH, hub.make(False), hub.make(True))}) == 4


def test_a_function_counts_by_the_file_it_lies_in_whatever_module_it_says_it_is_of(tmp_path, monkeypatch):
    hub = installed_module(tmp_path, "hub_renamed", "def f(x): return x\n", monkeypatch)
    before = text_of(hub.f)
    hub.f.__module__ = __name__
    assert text_of(hub.f) == before


def test_of_a_users_class_that_borrows_an_installed_function_its_own_source_counts(tmp_path, monkeypatch):
    hub = installed_module(tmp_path, "hub_lent", "def forward(x): return x\n", monkeypatch)
    texts = []
    (tmp_path / "own").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "own"), *sys.path])
    for name, rest in (("borrower", "RATE = 0.1\n"), ("another_borrower", "RATE = 0.2\n")):
        body = f"import hub_lent\nclass Model:\n    forward = hub_lent.forward\n{rest}"
        (tmp_path / "own" / f"{name}.py").write_text(body)
        texts.append(text_of(importlib.import_module(name).Model))
    assert hub.forward
    assert texts[0] == texts[1], "not the rest of its file"
    assert "forward = hub_lent.forward" in texts[0]
