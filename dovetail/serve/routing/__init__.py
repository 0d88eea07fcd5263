"""Which model answers a request: learned from outcomes, decided by quality and price."""

from dovetail.serve.routing.budget_keeper import BudgetKeeper
from dovetail.serve.routing.outcome_table import OutcomeTable
from dovetail.serve.routing.router import Router, RouteStep, route
from dovetail.serve.routing.routing_report import RoutingReport

__all__ = ["BudgetKeeper", "OutcomeTable", "RouteStep", "Router", "RoutingReport", "route"]
