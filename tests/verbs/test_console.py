"""What is written where there is no terminal is not cut."""

import io

from rich.table import Table
from rich.text import Text

from dovetail.verbs.console import Console, plain


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


def test_no_control_character_is_left_but_those_of_rich(monkeypatch):
    console = Console(file=io.StringIO(), force_terminal=True, width=80, color_system="standard")
    table = Table(box=None)
    table.add_column(Text("metric \x1b[2J"))
    table.add_row(Text("task \x1b]0;title\x07", style="red"))
    console.print(table)
    console.print(Text("\x9b2J line\u202e"))
    console.print(plain("[bold]\x1b[H"))
    found = console.file.getvalue()
    assert "\x1b[31m" in found  # the style's own
    for control in ("\x1b[2J", "\x1b]", "\x07", "\x9b", "\u202e", "\x1b[H"):
        assert control not in found
    assert r"[bold]\x1b[H" in found
