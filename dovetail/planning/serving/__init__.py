"""Replicas, batch sizes and kinds for a rate of requests under a promise of latency, by measured latencies."""

from dovetail.planning.serving.arrivals import arrivals_at, arrivals_of_trace
from dovetail.planning.serving.latency import LatencyCurve
from dovetail.planning.serving.queueing import FrontEnd, QueueForecast, ReplicaGroup, forecast
from dovetail.planning.serving.serving_plan import KindOffer, ServingPlan, check_serving, plan_serving

__all__ = [
    "FrontEnd",
    "KindOffer",
    "LatencyCurve",
    "QueueForecast",
    "ReplicaGroup",
    "ServingPlan",
    "arrivals_at",
    "arrivals_of_trace",
    "check_serving",
    "forecast",
    "plan_serving",
]
