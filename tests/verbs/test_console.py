"""What is written where there is no terminal is not cut."""

import io

from rich.table import Table

from dovetail.verbs.console import Console


def lines(console):
    table = Table(box=None)
    for column in range(40):
        table.add_column(f"a column with a long name {column}")
    table.add_row(*["a cell with many words in it"] * 40)
    console.print(table)
    return console.file.getvalue().splitlines()


def test_a_pipe_has_no_edge(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    found = lines(Console(file=io.StringIO()))
    assert len(found) == 2
    assert "a column with a long name 39" in found[0]
    assert Console(file=io.StringIO()).picture_width == 100


def test_who_says_how_wide_it_is_is_believed(monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    console = Console(file=io.StringIO())
    assert max(map(len, lines(console))) <= 70
    assert console.picture_width == 70
    monkeypatch.delenv("COLUMNS")
    assert Console(file=io.StringIO(), force_terminal=True).width < 1000
