"""The loop that measures, plans, runs and recovers; the socket that reaches it; what came of it."""

from dovetail.control.commands import CommandServer, ask
from dovetail.control.loop import Controller
from dovetail.control.reconcile import Reconciliation
from dovetail.control.result import Result, TaskResult, open_result, table
from dovetail.control.settings import Settings

__all__ = [
    "CommandServer",
    "Controller",
    "Reconciliation",
    "Result",
    "Settings",
    "TaskResult",
    "ask",
    "open_result",
    "table",
]
