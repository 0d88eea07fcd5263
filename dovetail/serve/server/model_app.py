"""The HTTP side of a model server: who may ask, what is read, what is answered and with which status.

`POST /predict` takes `{"inputs": ...}` as JSON, or safetensors with a tensor for each input; the answer comes in kind.
`GET /schema`, `/health`, `/metrics`; `POST /feedback` says what was right; `POST /reload` exchanges the model for the
store's best one of now.
"""

import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy
import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from dovetail.serve.server.answer_table import has_classes
from dovetail.serve.server.answer_watch import AnswerWatch
from dovetail.serve.server.batching import Overloaded, RequestQueue
from dovetail.serve.server.replica_pool import ReplicaPool
from dovetail.serve.server.request_body import RequestRefused, check_token, read_body
from dovetail.serve.server.schema import BadRequest, Schema
from dovetail.vocabulary import DovetailError

TENSORS = "application/x-safetensors"

Handler = Callable[[Request], Awaitable[Response]]


class ModelApp:
    """Answers by a pool of replicas. `reload` gives what the server is to say once another model answers."""

    def __init__(
        self,
        pool: ReplicaPool,
        queue: RequestQueue,
        schema: Schema,
        *,
        within: float,
        token: str = "",
        reload: Callable[[], Awaitable[str]] | None = None,
        about: Callable[[], dict[str, Any]] = dict,
        watch: AnswerWatch | None = None,
    ) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self._pool, self._queue, self._schema = pool, queue, schema
        self._within, self._token, self._reload, self._about = within, token, reload, about
        self._watch = watch or AnswerWatch(schema)
        self._registry = CollectorRegistry()
        self._answered = Counter("dovetail_requests", "Requests by status.", ["status"], registry=self._registry)
        self._seconds = Histogram(
            "dovetail_request_seconds",
            "Seconds from a request's last byte to its answer.",
            buckets=tuple(0.001 * 2**step for step in range(14)),
            registry=self._registry,
        )
        Gauge("dovetail_rows_waiting", "Rows that wait.", registry=self._registry).set_function(
            lambda: queue.rows_waiting
        )
        Gauge("dovetail_replicas", "Replicas that answer.", registry=self._registry).set_function(lambda: pool.ready)
        for name, text in (("alarm_count", "Alarms of drift"), ("escalated_share", "Share of rows that escalated")):
            gauge = Gauge(f"dovetail_{name}", f"{text} so far.", registry=self._registry)
            gauge.set_function(lambda name=name: getattr(self._watch, name))  # type: ignore[misc]
        for name in ("calls", "rows", "replicas_lost", "swaps", "compute_seconds", "call_seconds"):
            gauge = Gauge(f"dovetail_{name}_total", f"{name.replace('_', ' ')} so far.", registry=self._registry)
            gauge.set_function(lambda name=name: getattr(pool.counts, name))  # type: ignore[misc]
        self._well = self._answered.labels("200")
        self._handlers: dict[str, tuple[str, Handler]] = {
            "/predict": ("POST", self._guard(self.predict)),
            "/feedback": ("POST", self._guard(self.feedback)),
            "/reload": ("POST", self._guard(self.reload)),
            "/schema": ("GET", self._guard(self.schema)),
            "/metrics": ("GET", self._guard(self.metrics)),
            "/health": ("GET", self.health),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as ASGI asks. A framework's layers would take half of the time of what is asked most."""
        if scope["type"] == "http":
            response = await self.respond(Request(scope, receive))
            await response(scope, receive, send)

    async def respond(self, request: Request) -> Response:
        """The answer to an HTTP request on any of this app's paths."""
        method, handle = self._handlers.get(request.scope["path"], ("", None))
        if handle is None:
            return self._refuse(404, f"the path must be one of {', '.join(self._handlers)}.")
        if request.method != method:
            return self._refuse(405, f"the method must be {method}.", {"Allow": method})
        return await handle(request)

    def _guard(self, handle: Handler) -> Handler:
        """For whoever has the token, with errors as statuses."""

        async def answer(request: Request) -> Response:
            try:
                check_token(request, self._token)
                return await handle(request)
            except RequestRefused as error:
                return self._refuse(error.status, str(error), error.headers)
            except BadRequest as error:
                return self._refuse(400, str(error))
            except Overloaded as error:
                status = 503 if self._queue.is_closed else 429
                return self._refuse(status, str(error), {"Retry-After": str(max(1, math.ceil(error.retry_after)))})
            except TimeoutError:
                return self._refuse(504, f"no answer within {self._within:g} s.", {"Retry-After": "1"})
            except DovetailError as error:
                return self._refuse(422, str(error))
            except ClientDisconnect:
                return self._refuse(499, "the client has gone.")

        return answer

    def _refuse(self, status: int, text: str, headers: dict[str, str] | None = None) -> Response:
        self._answered.labels(str(status)).inc()
        return JSONResponse({"error": text}, status_code=status, headers=headers)

    async def predict(self, request: Request) -> Response:
        """The model's answer to the rows of a request."""
        is_tensors = request.headers.get("content-type", "").startswith(TENSORS)
        body = await read_body(request)
        self._queue.refuse_late(1, within=self._within)  # before any work is done for it
        arrays = self._tensors(body) if is_tensors else self._schema.read(_json(body))
        began = time.perf_counter()
        found = await self._queue.ask(arrays, within=self._within)
        self._seconds.observe(time.perf_counter() - began)
        self._well.inc()
        self._watch.note(arrays, found)
        if is_tensors:
            import safetensors.numpy

            content = safetensors.numpy.save({"outputs": numpy.ascontiguousarray(found.scores)})
            return Response(content, media_type=TENSORS)
        content = orjson.dumps({"outputs": numpy.ascontiguousarray(found.scores)}, option=orjson.OPT_SERIALIZE_NUMPY)
        return Response(content, media_type="application/json")

    def _tensors(self, body: bytes) -> list[numpy.ndarray]:
        import safetensors
        import safetensors.numpy

        try:
            given = safetensors.numpy.load(body)
        except safetensors.SafetensorError as error:
            raise BadRequest(f"the body must be safetensors; found: {error}.") from error
        except KeyError as error:  # what NumPy has no type for
            raise BadRequest(f"the tensors must be of types that NumPy has; found {error.args[0]}.") from error
        names = [field.name for field in self._schema.fields]
        if set(given) != set(names):
            raise BadRequest(f"the tensors must be {names}; got {sorted(given)}.")
        for field in self._schema.fields:
            if str(given[field.name].dtype) != field.dtype:
                raise BadRequest(f"{field.name} must be {field.dtype}; got {given[field.name].dtype}.")
        return self._schema.check([given[name] for name in names])

    async def feedback(self, request: Request) -> Response:
        """What was right for some rows, so that errors and calibration are watched."""
        body = _json(await read_body(request))
        arrays = self._schema.read(body)
        try:
            labels = numpy.array(given) if isinstance(given := body.get("labels"), list) else numpy.empty(0)
        except ValueError:  # lists of unlike lengths
            labels = numpy.empty(0)
        if labels.shape != (len(arrays[0]),) or labels.dtype.kind != "i":
            raise BadRequest(f"labels must be whole numbers, the class of each of the {len(arrays[0])} rows.")
        found = await self._queue.ask(arrays, within=self._within)
        if not has_classes(found.scores):
            raise BadRequest("labels are compared with classes, and this model gives none.")
        if not ((labels >= 0) & (labels < (count := found.scores.shape[1]))).all():
            raise BadRequest(f"labels must be classes, from 0 to {count - 1}; got {labels.min()} to {labels.max()}.")
        return JSONResponse({"rows": len(labels), "right": self._watch.note_labels(arrays, found, labels)})

    async def reload(self, request: Request) -> Response:
        """Exchange the served model for the newest one, by a request."""
        if self._reload is None:
            raise BadRequest("this server has one model, given when it was started.")
        return JSONResponse({"answering": await self._reload()})

    async def schema(self, request: Request) -> Response:
        """Answer with the inputs that this model takes: names, types and shapes."""
        return JSONResponse(self._schema.describe())

    async def metrics(self, request: Request) -> Response:
        """Answer with the metrics of this server, in the format of Prometheus."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return Response(generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def health(self, request: Request) -> Response:
        """Whether it answers: 503 where no replica does."""
        is_well = self._pool.ready > 0 and not self._queue.is_closed
        return JSONResponse(
            {
                "status": "ok" if is_well else "unavailable",
                "replicas": self._pool.ready,
                **self._about(),
                "drift": self._watch.alarms,
            },
            status_code=200 if is_well else 503,
        )


def _json(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except ValueError as error:
        raise BadRequest(f"the body must be JSON; found: {error}.") from error
