"""One model behind the gateway, asked over HTTP: timeouts, retries, a circuit breaker, so many calls at once.

What it raises names the model and never its address, which may hold a secret.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx

from dovetail.serve.gateway.circuit_breaker import CircuitBreaker
from dovetail.serve.gateway.models_file import UpstreamModel
from dovetail.vocabulary import DovetailError

RETRIES, PAUSE_SECONDS, CONNECT_SECONDS = 2, 0.1, 5.0
# An answer larger than this is no answer.
MOST_BYTES = 64 << 20
_PASSING = {408, 409, 425, 429, 500, 502, 503, 504}
# How much of the load of a model counts, from this share of what it takes at once.
BUSY = 0.5


class UpstreamFailed(DovetailError):
    """A model gave no answer; `status` is what a client is told: 502, 504, or what the model itself refused with.

    >>> UpstreamFailed("no answer", status=504).status
    504
    """

    def __init__(self, text: str, *, status: int, body: Any = None) -> None:
        super().__init__(text)
        self.status, self.body = status, body

    @property
    def is_clients_fault(self) -> bool:
        """Whether another model would refuse as well."""
        return self.status in (400, 413, 422)


class Upstream:
    """Asks one model."""

    def __init__(self, model: UpstreamModel, client: httpx.AsyncClient) -> None:
        self.model, self._client = model, client
        self.breaker = CircuitBreaker()
        self.running = 0

    @property
    def is_full(self) -> bool:
        """Whether it is asked as much at once as it may be."""
        return self.running >= self.model.at_once

    @property
    def pressure(self) -> float:
        """From 0, up to half of what it takes at once, to 1 where it is full: the quality that another model may be
        worse by and still be preferred."""
        return max(0.0, self.running / self.model.at_once - BUSY) / (1 - BUSY)

    @contextlib.contextmanager
    def _counted(self) -> Any:
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1

    async def ask(self, path: str, payload: dict[str, Any]) -> dict[str, Any]:
        """The whole answer. Raises `UpstreamFailed`."""
        with self._counted():
            async with self._open(path, payload) as response:
                try:
                    async with asyncio.timeout(self.model.timeout_seconds):
                        found = json.loads(await _read_all(response))
                except (ValueError, RecursionError):
                    raise self._make_failure("answered what is not JSON", 502) from None
                except (httpx.HTTPError, TimeoutError) as error:
                    raise self._translate(error) from None
        if not isinstance(found, dict) or not isinstance(found.get("choices"), list) or not found["choices"]:
            raise self._make_failure("answered without choices", 502)
        self.breaker.record_success()
        return found

    @contextlib.asynccontextmanager
    async def stream(self, path: str, payload: dict[str, Any]) -> AsyncIterator[AsyncIterator[str]]:
        """The lines of an answer that comes in parts; entered once its first one is there."""
        with self._counted():
            async with self._open(path, payload) as response:
                lines = response.aiter_lines()
                try:
                    async with asyncio.timeout(self.model.timeout_seconds):
                        first = await anext(lines, "")
                        while not first.strip():
                            first = await anext(lines)
                except StopAsyncIteration:
                    raise self._make_failure("ended before its answer began", 502) from None
                except (httpx.HTTPError, TimeoutError) as error:
                    raise self._translate(error) from None
                if not first.startswith(("data:", ":", "event:")):
                    raise self._make_failure("answered what is no stream of events", 502)
                yield self._lines(first, lines)

    async def _lines(self, first: str, lines: AsyncIterator[str]) -> AsyncIterator[str]:
        yield first
        last = first
        try:
            async for line in lines:
                yield line
                last = line if line.strip() else last
        except httpx.HTTPError as error:
            raise self._translate(error) from None
        if last.removeprefix("data:").strip() != "[DONE]":
            raise self._make_failure("closed midway", 502)
        self.breaker.record_success()

    @contextlib.asynccontextmanager
    async def _open(self, path: str, payload: dict[str, Any]) -> AsyncIterator[httpx.Response]:
        """A response that has begun well; what may pass is tried again, unless the client of the gateway is waiting for
        a model that is known to fail."""
        for attempt in range(RETRIES + 1):
            self.breaker.begin()
            try:
                response = await self._send(path, payload)
            except httpx.HTTPError as error:
                failure, may_pass = self._translate(error), not isinstance(error, httpx.ReadTimeout)
            else:
                if response.is_success:
                    try:
                        yield response
                    finally:
                        await response.aclose()
                    return
                failure, may_pass = await self._refusal(response), response.status_code in _PASSING
            if not may_pass or attempt == RETRIES or not self.breaker.allows():
                raise failure
            await asyncio.sleep(PAUSE_SECONDS * 2**attempt)

    async def _send(self, path: str, payload: dict[str, Any]) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.model.key}"} if self.model.key else {}
        request = self._client.build_request(
            "POST",
            self._address(path),
            json=payload | {"model": self.model.model},
            headers=headers,
            timeout=httpx.Timeout(self.model.timeout_seconds, connect=CONNECT_SECONDS),
        )
        return await self._client.send(request, stream=True)

    def _address(self, path: str) -> httpx.URL:
        """Behind the path of the model's address; what its query holds stays."""
        url = httpx.URL(self.model.url)
        return url.copy_with(path=url.path.rstrip("/") + path)

    async def _refusal(self, response: httpx.Response) -> UpstreamFailed:
        with contextlib.suppress(httpx.HTTPError, ValueError, TimeoutError, UpstreamFailed):
            async with asyncio.timeout(CONNECT_SECONDS):
                body = json.loads(await _read_all(response))
                if 400 <= response.status_code < 500 and response.status_code not in (*_PASSING, 401, 403):
                    await response.aclose()
                    self.breaker.record_success()  # it answers; the request was not to its liking
                    said = f"model {self.model.name!r} refused with {response.status_code}."
                    return UpstreamFailed(said, status=response.status_code, body=body)
        await response.aclose()
        return self._make_failure(f"answered with {response.status_code}", 502)

    def _translate(self, error: Exception) -> UpstreamFailed:
        if isinstance(error, httpx.TimeoutException | TimeoutError):
            return self._make_failure(f"gave no answer within {self.model.timeout_seconds:g} s", 504)
        return self._make_failure(f"could not be asked ({type(error).__name__})", 502)

    def _make_failure(self, what: str, status: int) -> UpstreamFailed:
        self.breaker.record_failure()
        return UpstreamFailed(f"model {self.model.name!r} {what}.", status=status)


async def _read_all(response: httpx.Response) -> bytes:
    parts, size = [], 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > MOST_BYTES:
            raise ValueError("too large")
        parts.append(part)
    return b"".join(parts)
