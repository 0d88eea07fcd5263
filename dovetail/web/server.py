"""The live page's server: hands out the page, what stores say, and takes what users ask of controllers.

It reads stores as any reader does and never writes one; what is asked of a task goes to the controller's socket. Only
whoever has the token is let in (`page_keys`), and every answer forbids the browser to load anything from elsewhere.
"""

import contextlib
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from dovetail.vocabulary import DovetailError
from dovetail.web import answers, task_page
from dovetail.web.follower import StoreFollower
from dovetail.web.frozen_page import bundle
from dovetail.web.news import StoreNews, lower_priority
from dovetail.web.page_actions import act
from dovetail.web.page_keys import HEADERS, PageKeys
from dovetail.web.plain_data import dump

# A request to act is a few words; a grid of tasks, some thousand.
MOST_BYTES = 1 << 20
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
_STRANGER = (
    "This page must be opened by the link that 'dovetail ui' printed, with its token; the token is missing or is not "
    "this server's. Look at the terminal in which it runs, and open that link.\n"
)
_LEAST_PACKED = 500

Handler = Callable[[Request], Awaitable[Response]]


class PageServer:
    """The page of these stores, for whoever has the token of `keys`; with `read_only` nobody acts."""

    def __init__(self, homes: Sequence[Path], *, keys: PageKeys, port: int, read_only: bool = False) -> None:
        self._keys, self._port, self._read_only, self._homes = keys, port, read_only, list(homes)
        self._news: list[StoreNews] = []
        self.app = Starlette(routes=self._routes(), lifespan=self._lifespan)

    def _routes(self) -> list[Route]:
        views: dict[str, Handler] = {
            "/": self._index,
            "/page/bundle.js": self._bundle,
            "/page/{name}": self._asset,
            "/vendor/{name}": self._asset,
            "/api/about": self._about,
            "/api/{store:int}/snapshot": self._snapshot,
            "/api/{store:int}/events": self._events,
            "/api/{store:int}/curves": self._answer(_curves),
            "/api/{store:int}/sparks": self._answer(_sparks),
            "/api/{store:int}/plan": self._answer(_plan),
            "/api/{store:int}/task": self._answer(self._task),
            "/api/{store:int}/cluster": self._answer(lambda follower, request: task_page.cluster_of(follower.reading)),
            "/api/{store:int}/pipelines": self._answer(_pipelines),
            "/api/{store:int}/targets": self._answer(_targets),
            "/api/{store:int}/why": self._answer(_why),
        }
        routes = [Route(path, self._guard(view)) for path, view in views.items()]
        return [*routes, Route("/api/{store:int}/ask", self._guard(self._ask), methods=["POST"])]

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._news = [StoreNews(home) for home in self._homes]
        for news in self._news:
            await news.begin()
        lower_priority()
        yield
        for news in self._news:
            await news.close()

    def _guard(self, view: Handler) -> Handler:
        """The view for those who may see it, with the headers that every answer has."""

        async def guarded(request: Request) -> Response:
            response = self._refusal(request) or await view(request)
            response.headers.update({name: value for name, value in HEADERS.items() if name not in response.headers})
            return response

        return guarded

    def _refusal(self, request: Request) -> Response | None:
        if not self._keys.is_called_rightly(request.headers.get("host", "")):
            return PlainTextResponse("this server must be called by a name of this machine\n", 421)
        is_arrival = request.url.path == "/" and self._keys.admits(request.query_params.get("token", ""))
        if is_arrival or self._keys.knows(request.cookies, port=self._port):
            return None
        return PlainTextResponse(_STRANGER, 401)

    async def _index(self, request: Request) -> Response:
        """The page; whoever comes with the token gets a cookie, and an address without it for the history."""
        if "token" not in request.query_params:
            return _file("page", "index.html")
        response = RedirectResponse("/", 303)
        if self._keys.admits(request.query_params["token"]):
            name = self._keys.cookie(self._port)
            response.set_cookie(name, self._keys.session, httponly=True, samesite="strict", path="/")
        return response

    async def _bundle(self, request: Request) -> Response:
        """All modules in one answer, as they are in their files now: to change the page takes no build step."""
        return _compress(bundle().encode(), ".js")

    async def _asset(self, request: Request) -> Response:
        return _file(request.url.path.split("/")[1], request.path_params["name"])

    async def _about(self, request: Request) -> Response:
        return _json(
            {
                "stores": [str(news.follower.home) for news in self._news],
                "read_only": self._read_only,
                "action": "" if self._read_only else self._keys.action,
            }
        )

    async def _snapshot(self, request: Request) -> Response:
        news = self._news_of(request)
        if news is None:
            return _error("there is no such store on this page", 404)
        headers = {"content-encoding": "gzip", "content-type": "application/json"}
        return Response(await news.snapshot(), headers=headers)

    async def _events(self, request: Request) -> Response:
        news = self._news_of(request)
        if news is None:
            return _error("there is no such store on this page", 404)
        mark = request.headers.get("last-event-id") or request.query_params.get("after", "")
        headers = {"content-encoding": "gzip", "x-accel-buffering": "no"}
        return StreamingResponse(news.watch(mark), media_type="text/event-stream", headers=headers)

    def _answer(self, question: Callable[[StoreFollower, Request], Any]) -> Handler:
        """A view that answers with what a follower knows; what it refuses is said."""

        async def answer(request: Request) -> Response:
            news = self._news_of(request)
            if news is None:
                return _error("there is no such store on this page", 404)
            try:
                return _json(await news.ask(lambda follower: question(follower, request)))
            except (DovetailError, ValueError) as error:
                return _error(str(error), 404)

        return answer

    def _task(self, follower: StoreFollower, request: Request) -> Any:
        return task_page.task_of(
            follower.reading,
            follower.store,
            request.query_params.get("id", ""),
            now=follower.now,
            source=not self._read_only,
        )

    async def _ask(self, request: Request) -> Response:
        """Pass on what a user asks for, and what the controller answers."""
        news = self._news_of(request)
        if news is None:
            return _error("there is no such store on this page", 404)
        if self._read_only:
            return _error("this page is for looking only; start 'dovetail ui' without --read-only to act", 403)
        if not self._keys.lets_act(request.headers):
            return _error("an action must come from this very page; load it again", 403)
        body = await request.body()
        try:
            if len(body) > MOST_BYTES:
                raise DovetailError(f"a request must have at most {MOST_BYTES:,} bytes, got {len(body):,}.")
            wanted = json.loads(body)
            tasks = await news.ask(
                lambda follower: follower.store.tasks(identity=wanted.get("id") or None) if wanted.get("id") else []
            )
            return _json(await run_in_threadpool(act, news.follower.home, wanted, [task for _, task in tasks]))
        except (DovetailError, ValueError, AttributeError, TypeError) as error:
            return _json({"error": str(error)}, 400)

    def _news_of(self, request: Request) -> StoreNews | None:
        number = request.path_params["store"]
        return self._news[number] if 0 <= number < len(self._news) else None


def _words(request: Request, name: str) -> list[str]:
    return [word for word in request.query_params.getlist(name) for word in word.split("\n") if word]


def _curves(follower: StoreFollower, request: Request) -> Any:
    metrics = _words(request, "metric")
    return answers.curves_of(follower.reading, follower.store, _words(request, "task"), metrics=metrics)


def _sparks(follower: StoreFollower, request: Request) -> Any:
    metric = request.query_params.get("metric", "")
    return answers.sparks_of(follower.reading, follower.store, _words(request, "task"), metric=metric)


def _plan(follower: StoreFollower, request: Request) -> Any:
    return answers.plan_of(follower.reading, follower.store, int(request.query_params.get("number", "0")))


def _pipelines(follower: StoreFollower, request: Request) -> Any:
    return answers.pipelines_of(follower.reading, follower.store)


def _targets(follower: StoreFollower, request: Request) -> Any:
    return answers.targets_of(follower.reading, follower.store)


def _why(follower: StoreFollower, request: Request) -> Any:
    return answers.explain_outcomes(follower.reading, follower.store)


def _file(folder: str, name: str) -> Response:
    found = resources.files("dovetail.web").joinpath(folder, name)
    suffix = Path(name).suffix
    if suffix not in _TYPES or "/" in name or not found.is_file():
        return _error("there is no such file", 404)
    return _compress(found.read_bytes(), suffix)


def _compress(content: bytes, suffix: str) -> Response:
    headers = {"content-encoding": "gzip", "content-type": f"{_TYPES[suffix]}; charset=utf-8"}
    return Response(gzip.compress(content, 3), headers=headers)


def _json(data: Any, status: int = 200) -> Response:
    body = dump(data).encode()
    headers = {"content-type": "application/json"}
    if len(body) > _LEAST_PACKED:
        body, headers["content-encoding"] = gzip.compress(body, 3), "gzip"
    return Response(body, status, headers=headers)


def _error(text: str, status: int) -> Response:
    return _json({"error": text}, status)
