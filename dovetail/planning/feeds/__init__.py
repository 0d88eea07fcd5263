"""Planning of feeds: from what was measured of each stage to its kind of worker, its workers and its buffer. Pure."""

from dovetail.planning.feeds.advice import FeedAdvice, advise
from dovetail.planning.feeds.drift import FeedDecision, StageObservation, decide
from dovetail.planning.feeds.feed_model import FeedModel
from dovetail.planning.feeds.feed_planner import plan_feed
from dovetail.planning.feeds.feed_prediction import predict_feed
from dovetail.planning.feeds.resizing import worth_resizing
from dovetail.planning.feeds.scaling import fit_scaling

__all__ = [
    "FeedAdvice",
    "FeedDecision",
    "FeedModel",
    "StageObservation",
    "advise",
    "decide",
    "fit_scaling",
    "plan_feed",
    "predict_feed",
    "worth_resizing",
]
