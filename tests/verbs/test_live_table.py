"""What the live table writes beside its rows."""

import io

from dovetail.verbs.console import Console
from dovetail.verbs.live_table import LiveTable
from dovetail.vocabulary import TaskId
from dovetail.vocabulary.events import Warned


def test_warnings_of_the_whole_are_told_at_once_and_those_of_tasks_are_not():
    file = io.StringIO()
    with LiveTable(Console(file=file)) as table:
        table.hear([Warned(at_seconds=0.0, message="the disk is [small]")])
        table.hear([Warned(at_seconds=0.0, task=TaskId("a"), message="its own")])
    assert file.getvalue() == "warning: the disk is [small]\n"
