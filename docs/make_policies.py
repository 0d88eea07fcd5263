"""Writes docs/policies.md from the policies' docstrings: `.venv/bin/python docs/make_policies.py`."""

import inspect
import re
import sys
from pathlib import Path

from dovetail.planning.share.policies import PARETO, POLICIES, SHARING

PAGE = Path(__file__).with_name("policies.md")

HEAD = """<!-- fmt: off -->
# Policies

Written by `docs/make_policies.py` from the docstrings; do not edit. A policy is a pure function from a `Problem` to an
`Allocation`, listed in `dovetail.planning.share.policies.POLICIES`. `dovetail simulate --policy NAME` runs one.

Symbols: m is a task, o an option, j a kind. share(o) is how many of o's gangs run at once on average; rate(m) = Σ share
× rate over the options that run m; reference(m) is what one device of the average kind gives m; steps, age, weight and
deadline are the task's. Always: a task runs at most all of the time, no kind gives more devices than it has, and no
more is spent an hour than the problem's limit.

| policy | in a word | leaves nothing unused | no worse than an equal part |
|---|---|---|---|
"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page())


def page() -> str:
    """The whole page."""
    rows = [
        f"| [`{name}`](#{name}) | {_title(name)} | {_mark(name in PARETO)} | {_mark(name in SHARING)} |"
        for name in POLICIES
    ]
    parts = [f"## `{name}`\n\n{_title(name)}\n\n{_formula(name)}\n" for name in POLICIES]
    return HEAD + "\n".join(rows) + "\n\n" + "\n".join(parts)


def _title(name: str) -> str:
    return (inspect.getdoc(sys.modules[POLICIES[name].__module__]) or "").splitlines()[0]


def _formula(name: str) -> str:
    """The first paragraph, which is the formula, as a block, and what follows it up to the example."""
    said = re.split(r"\n\s*>>> ", inspect.getdoc(POLICIES[name]) or "")[0].strip()
    formula, _, rest = said.partition("\n\n")
    return f"> {' '.join(formula.split())}" + (f"\n\n{rest}" if rest else "")


def _mark(holds: bool) -> str:
    return "yes" if holds else ""


if __name__ == "__main__":
    main()
