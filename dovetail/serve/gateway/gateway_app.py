"""The HTTP side of a gateway: OpenAI's endpoints for chat and completions, streaming included.

`model` is `auto`, which leaves the choice to the gateway, or the name of one. An answer says in the header
`x-dovetail-model` who gave it. `POST /v1/feedback` takes `{"id": ..., "quality": 0 to 1}` for an answer that was given.
"""

import collections
import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from dovetail.serve.gateway.chat_request import (
    CHAT,
    COMPLETIONS,
    ChatRequest,
    answer_text,
    keep_majority,
    sampled_answer,
    tokens_of,
)
from dovetail.serve.gateway.gateway_metrics import GatewayMetrics
from dovetail.serve.gateway.models_file import AUTO, UpstreamModel
from dovetail.serve.gateway.outcome_log import OutcomeLog
from dovetail.serve.gateway.routing_policy import RoutingPolicy, is_ready, retry_after
from dovetail.serve.gateway.upstream import Upstream, UpstreamFailed
from dovetail.serve.server.request_body import RequestRefused, check_token, read_body

# Of so many answers feedback is taken.
REMEMBERED = 100_000

Handler = Callable[[Request], Awaitable[Response]]


class GatewayApp:
    """Answers by the models that `policy` chooses, and notes what came of it."""

    def __init__(
        self,
        models: Sequence[UpstreamModel],
        policy: RoutingPolicy,
        client: httpx.AsyncClient,
        *,
        token: str = "",
        log: OutcomeLog | None = None,
    ) -> None:
        self._policy, self._token, self._log = policy, token, log
        self._upstreams = {model.name: Upstream(model, client) for model in models}
        self._metrics = GatewayMetrics(list(self._upstreams.values()))
        self._given: collections.OrderedDict[str, str] = collections.OrderedDict()
        routes: dict[str, tuple[str, Handler]] = {
            "/v1/chat/completions": ("POST", self._make_handler(CHAT)),
            "/v1/completions": ("POST", self._make_handler(COMPLETIONS)),
            "/v1/feedback": ("POST", self._feedback),
            "/v1/models": ("GET", self._list),
            "/metrics": ("GET", self._show_metrics),
        }
        guarded = [Route(path, self._guard(view), methods=[method]) for path, (method, view) in routes.items()]
        self.app = Starlette(routes=[*guarded, Route("/health", self._health)])

    def _guard(self, view: Handler) -> Handler:
        """For whoever has the token; what is refused is told as OpenAI's clients expect it."""

        async def answer(request: Request) -> Response:
            try:
                check_token(request, self._token)
                response = await view(request)
            except RequestRefused as error:
                response = _error(error.status, str(error), error.headers)
            except UpstreamFailed as error:
                response = _error(error.status, str(error)) if error.body is None else _pass_on(error)
            except ClientDisconnect:
                response = _error(499, "the client has gone.")
            self._metrics.count_answer(response.status_code)
            return response

        return answer

    def _make_handler(self, path: str) -> Handler:
        async def answer(request: Request) -> Response:
            asked = ChatRequest.read(path, await read_body(request))
            order = self._order(asked)
            return await (self._stream if asked.is_stream else self._answer_whole)(asked, order)

        return answer

    def _order(self, asked: ChatRequest) -> list[str]:
        """The models that may be asked now, the first choice first. Raises where there is none."""
        if asked.model == AUTO:
            wanted = self._policy.order(asked.query, asked.domain, self._upstreams)
        elif asked.model in self._upstreams:
            wanted = [asked.model]
        else:
            names = ", ".join([AUTO, *self._upstreams])
            raise RequestRefused(404, f"model must be one of {names}; got {asked.model[:100]!r}.")
        if ready := [name for name in wanted if is_ready(self._upstreams[name])]:
            return ready
        those = [self._upstreams[name] for name in wanted]
        status = 429 if any(each.is_full for each in those) else 503
        why = "all that may be asked are busy" if status == 429 else "none that may be asked answers"
        wait = {"Retry-After": str(retry_after(those, self._metrics.mean_seconds))}
        raise RequestRefused(status, f"{why}; ask again later.", headers=wait)

    async def _answer_whole(self, asked: ChatRequest, order: list[str]) -> Response:
        """An answer in one piece; where the table has answers to learn from, it may be the second."""
        if asked.model == AUTO and (first := self._policy.start(order)) in order:
            order = [first, *(name for name in order if name != first)]
        found, name = await self._first_answer(asked, order)
        answers, bodies, prices = {name: sampled_answer(found)}, {name: found}, {}
        while asked.model == AUTO:
            onward, give = self._policy.onward(asked.query, answers, asked.domain, self._upstreams)
            if onward is None or onward in answers:
                name = give
                break
            try:
                bodies[onward] = await self._ask(asked, onward)
            except UpstreamFailed:
                break  # there is an answer already
            answers[onward], name = sampled_answer(bodies[onward]), onward
        number = str(bodies[name].get("id") or uuid.uuid4().hex)
        for each, body in bodies.items():
            prices[each] = self._price(asked, each, body, len(answers[each]))
            self._note(number, asked, each, answers[each], prices[each])
        self._record_answer(number, name, prices)
        given = keep_majority(bodies[name]) if self._samples(asked, name) > 1 else bodies[name]
        return _as_it_came(given | {"id": number}, headers={"x-dovetail-model": name})

    async def _first_answer(self, asked: ChatRequest, order: Sequence[str]) -> tuple[dict[str, Any], str]:
        """The answer of the first model that gives one."""
        for name in order[:-1]:
            try:
                return await self._ask(asked, name), name
            except UpstreamFailed as error:
                if error.is_clients_fault:
                    raise
        return await self._ask(asked, order[-1]), order[-1]

    async def _ask(self, asked: ChatRequest, name: str) -> dict[str, Any]:
        more = {"n": samples} if (samples := self._samples(asked, name)) > 1 else {}
        with self._metrics.call(name):
            return await self._upstreams[name].ask(asked.path, asked.payload | more)

    def _samples(self, asked: ChatRequest, name: str) -> int:
        """How many answers are asked for at once: more than one where the gateway chooses, and the client does not."""
        return self._upstreams[name].model.samples if asked.model == AUTO and "n" not in asked.payload else 1

    async def _stream(self, asked: ChatRequest, order: list[str]) -> Response:
        """An answer in parts, from the first model that begins one. What has begun cannot be taken back, so that it is
        chosen by the query alone."""
        stack = contextlib.AsyncExitStack()
        for place, name in enumerate(order):
            try:
                stack.enter_context(self._metrics.call(name))
                lines = await stack.enter_async_context(self._upstreams[name].stream(asked.path, asked.payload))
                break
            except UpstreamFailed as error:
                await stack.aclose()
                if place == len(order) - 1 or error.is_clients_fault:
                    raise
        headers = {"x-dovetail-model": name, "cache-control": "no-cache"}
        return HeldStream(self._parts(asked, name, lines, stack), stack, headers=headers)

    async def _parts(
        self, asked: ChatRequest, name: str, lines: AsyncIterator[str], stack: contextlib.AsyncExitStack
    ) -> AsyncIterator[str]:
        """The lines of an answer as they come. What came is paid for and noted, also where a client goes or the model
        breaks off midway."""
        text: list[str] = []
        last: dict[str, Any] = {}
        number = ""
        try:
            async with stack:
                try:
                    async for line in lines:
                        with contextlib.suppress(ValueError, AttributeError):
                            part = json.loads(line.removeprefix("data:"))
                            text.append(answer_text(part))
                            number = number or str(part.get("id") or "")
                            last = part if part.get("usage") else last
                        yield line + "\n"
                except UpstreamFailed as error:  # the status is sent; a client learns of it in its stream
                    self._metrics.count_broken_answer(name)
                    yield f"data: {json.dumps(_error_body(502, str(error)))}\n\n"
        finally:
            number = number or uuid.uuid4().hex
            price = self._price(asked, name, last, sum(map(len, text)))
            self._note(number, asked, name, "".join(text), price)
            self._record_answer(number, name, {name: price})

    def _price(self, asked: ChatRequest, name: str, found: dict[str, Any], characters: int) -> float:
        tokens = tokens_of(found, tokens_in=asked.tokens_in(), characters_out=characters)
        return self._upstreams[name].model.price(*tokens)

    def _note(self, number: str, asked: ChatRequest, name: str, answer: str, price: float) -> None:
        if self._log is not None:
            seconds = self._metrics.last_seconds.get(name)
            self._log.add(
                id=number, query=asked.query, model=name, domain=asked.domain, answer=answer, price=price,
                seconds=seconds,
            )  # fmt: skip

    def _record_answer(self, number: str, name: str, prices: dict[str, float]) -> None:
        self._policy.record_spend(sum(prices.values()), by_model=prices)
        self._metrics.record_spend(prices)
        self._given[number] = name
        if len(self._given) > REMEMBERED:
            self._given.popitem(last=False)

    async def _feedback(self, request: Request) -> Response:
        """Note how good an answer was, as the caller says of its number."""
        if self._log is None:
            raise RequestRefused(409, "feedback is kept only where the gateway was started with --record.")
        try:
            found = json.loads(await read_body(request))
            number, quality = found["id"], found["quality"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise RequestRefused(400, "feedback must be an object with an answer's 'id' and a 'quality'.") from None
        if isinstance(quality, bool) or not isinstance(quality, int | float) or not 0 <= quality <= 1:
            raise RequestRefused(400, "quality must be a number from 0 to 1.")
        if not isinstance(number, str) or number not in self._given:
            raise RequestRefused(404, f"the id must be that of an answer among the last {REMEMBERED:,}.")
        self._log.add(id=number, model=self._given[number], quality=float(quality))
        return JSONResponse({"id": number, "quality": quality})

    async def _list(self, request: Request) -> Response:
        now = int(time.time())
        names = [AUTO, *self._upstreams]
        data = [{"id": name, "object": "model", "created": now, "owned_by": "dovetail"} for name in names]
        return JSONResponse({"object": "list", "data": data})

    async def _health(self, request: Request) -> Response:
        """Whether at least one model may be asked."""
        states = {name: "ok" if each.breaker.allows() else "failing" for name, each in self._upstreams.items()}
        is_well = "ok" in states.values()
        body = {"status": "ok" if is_well else "unavailable", "models": states}
        return JSONResponse(body, 200 if is_well else 503)

    async def _show_metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


def _error_body(status: int, text: str) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 and status != 429 else "server_error"
    return {"error": {"message": text, "type": kind, "param": None, "code": status}}


def _error(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse(_error_body(status, text), status, headers=headers)


def _pass_on(error: UpstreamFailed) -> Response:
    return _as_it_came(error.body, error.status)


class HeldStream(StreamingResponse):
    """A stream of events that lets go of what it holds however it ends: of a client that has gone before the first part
    nothing else is told."""

    def __init__(self, parts: AsyncIterator[str], held: contextlib.AsyncExitStack, *, headers: dict[str, str]) -> None:
        super().__init__(parts, media_type="text/event-stream", headers=headers)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._held.aclose()


def _as_it_came(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A model's own words: NaN and halves of characters too, which a JSONResponse would refuse."""
    return Response(json.dumps(body), status, headers=headers, media_type="application/json")
