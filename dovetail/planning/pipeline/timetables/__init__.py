"""Pipelines' timetables: who computes which microbatch when, as data.

(A *schedule* is placements of tasks on devices, in the whole project; what literature calls a pipeline schedule is a
timetable here.) Each maker takes the replicas of every stage and the microbatches of a step.
"""

from collections.abc import Callable

from dovetail.planning.pipeline.timetables.actions import Action, Timetable
from dovetail.planning.pipeline.timetables.consistency import check, versions_kept
from dovetail.planning.pipeline.timetables.makers import (
    double_buffered,
    gpipe,
    interleaved,
    one_forward_one_backward,
    stashing,
    vertical_sync,
    zero_bubble,
)
from dovetail.planning.pipeline.timetables.picture import one_step, recorded
from dovetail.planning.pipeline.timetables.timing import Durations, Simulated, Timed, simulate

TIMETABLES: dict[str, Callable[..., Timetable]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved": interleaved,
    "zero_bubble": zero_bubble,
    "stashing": stashing,
    "vertical_sync": vertical_sync,
    "2bw": double_buffered,
}

ASYNCHRONOUS = ("stashing", "vertical_sync", "2bw")
"""Timetables whose weights change under way: another mathematics, asked for by name."""

SPARING = ("1f1b", "stashing", "vertical_sync", "2bw")
"""Timetables that can have microbatches to spare in flight, at the price of their memory."""

__all__ = [
    "ASYNCHRONOUS",
    "SPARING",
    "TIMETABLES",
    "Action",
    "Durations",
    "Simulated",
    "Timed",
    "Timetable",
    "check",
    "one_step",
    "recorded",
    "simulate",
    "versions_kept",
]
