"""The loop that measures, plans, runs and recovers; the socket that reaches it; what came of it."""

from dovetail.control.daemon.commands import CommandServer, ask
from dovetail.control.daemon.serving import Answers, standing
from dovetail.control.deciding import Decider
from dovetail.control.deciding.outlook import clock
from dovetail.control.loop import Controller
from dovetail.control.reconcile import Reconciliation
from dovetail.control.result import Result, TaskResult, open_result, table
from dovetail.control.settings import Settings

__all__ = [
    "Answers",
    "CommandServer",
    "Controller",
    "Decider",
    "Reconciliation",
    "Result",
    "Settings",
    "TaskResult",
    "ask",
    "clock",
    "open_result",
    "standing",
    "table",
]
