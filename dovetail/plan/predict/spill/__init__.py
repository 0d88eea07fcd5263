"""What a spilled model takes: which of its segments stay on the device, where the others live, what that takes in bytes
and, with the simulation of `plan/streaming`, in seconds. A spilled model is a gang of one.

`layouts` decides for any segments within budgets, `cutting` makes segments of a profile's layers, `room` says how fast
things move on a device's node, `offers` makes options of all that.
"""

from dovetail.plan.predict.spill.cutting import cut, segments, working_bytes
from dovetail.plan.predict.spill.layouts import DoesNotFit, layout
from dovetail.plan.predict.spill.offers import option, predict
from dovetail.plan.predict.spill.room import Room
from dovetail.plan.streaming.records import Layout, Pace, Rates, Segment, Spilled
from dovetail.plan.streaming.simulate import step_seconds

__all__ = [
    "DoesNotFit",
    "Layout",
    "Pace",
    "Rates",
    "Room",
    "Segment",
    "Spilled",
    "cut",
    "layout",
    "option",
    "predict",
    "segments",
    "step_seconds",
    "working_bytes",
]
