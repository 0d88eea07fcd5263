"""What a gateway counts, for Prometheus and for itself."""

import contextlib
import functools
import time
from collections.abc import Iterator, Mapping, Sequence

from dovetail.serve.gateway.upstream import Upstream, UpstreamFailed

_NEWEST = 0.1


class GatewayMetrics:
    """Requests by status, calls by model and end, seconds, money, and who is asked how much at once."""

    def __init__(self, upstreams: Sequence[Upstream]) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self._registry = CollectorRegistry()
        registry = self._registry
        self._requests = Counter("dovetail_route_requests", "Requests by status.", ["status"], registry=registry)
        self._calls = Counter("dovetail_route_calls", "Calls of models by end.", ["model", "end"], registry=registry)
        self._spend = Counter("dovetail_route_spend", "Money spent.", ["model"], registry=registry)
        self._seconds = Histogram(
            "dovetail_route_call_seconds",
            "Seconds of a call.",
            ["model"],
            buckets=tuple(0.01 * 2**step for step in range(14)),
            registry=registry,
        )
        running = Gauge("dovetail_route_running", "Calls under way.", ["model"], registry=registry)
        is_open = Gauge("dovetail_route_failing", "1 where a model is not asked.", ["model"], registry=registry)
        for each in upstreams:
            running.labels(each.model.name).set_function(functools.partial(_count_running, each))
            is_open.labels(each.model.name).set_function(functools.partial(_is_failing, each))
        self.last_seconds: dict[str, float] = {}
        self.mean_seconds = 1.0

    @contextlib.contextmanager
    def call(self, name: str) -> Iterator[None]:
        """A call of a model, from its beginning to its end."""
        began = time.perf_counter()
        end = "failed"
        try:
            yield
            end = "answered"
        except UpstreamFailed as error:
            end = "refused" if error.body is not None else "failed"
            raise
        finally:
            seconds = time.perf_counter() - began
            self._calls.labels(name, end).inc()
            self._seconds.labels(name).observe(seconds)
            self.last_seconds[name] = seconds
            self.mean_seconds += _NEWEST * (seconds - self.mean_seconds)

    def count_broken_answer(self, name: str) -> None:
        """Count an answer of this model that ended midway."""
        self._calls.labels(name, "broken").inc()

    def count_answer(self, status: int) -> None:
        """Count a request that was answered with this status."""
        self._requests.labels(str(status)).inc()

    def record_spend(self, prices: Mapping[str, float]) -> None:
        """Add what a request has taken with each model to the models' spend."""
        for name, price in prices.items():
            self._spend.labels(name).inc(price)

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry)


def _count_running(upstream: Upstream) -> float:
    return float(upstream.running)


def _is_failing(upstream: Upstream) -> float:
    return float(not upstream.breaker.allows())
