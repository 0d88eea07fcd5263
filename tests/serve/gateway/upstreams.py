"""A real server that speaks OpenAI's protocol, in a process of its own: `python upstreams.py PORT`.

What it does depends on the model asked for: `good` echoes, `sure` and `unsure` answer so, others misbehave.
"""

import asyncio
import json
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

COUNTS: dict[str, int] = {}


async def answer(request: Request) -> Response:
    payload = await request.json()
    model = payload["model"]
    COUNTS[model] = COUNTS.get(model, 0) + 1
    if model == "hang":
        await asyncio.sleep(60)
    if model == "slow":
        await asyncio.sleep(0.5)
    if model == "garbage":
        return Response("<html>it works!</html>")
    if model == "empty":
        return JSONResponse({"choices": []})
    if model == "failing" or (model == "flaky" and COUNTS[model] % 2):
        return JSONResponse({"error": {"message": "out of order"}}, 500)
    if model == "strict":
        return JSONResponse({"error": {"message": "temperature must be 0"}}, 400)
    if model == "locked" and request.headers.get("authorization") != "Bearer upstream-secret-key":
        return JSONResponse({"error": {"message": "no"}}, 401)
    is_chat = request.url.path.endswith("chat/completions")
    asked = payload["messages"][-1]["content"] if is_chat else payload["prompt"]
    text = {"unsure": "I do not know"}.get(model, f"{model} says: {asked}")
    if payload.get("stream"):
        return StreamingResponse(parts(model, text, is_chat), media_type="text/event-stream")
    texts = [f"{number % 3 > 0} {text}" for number in range(payload["n"])] if "n" in payload else [text]
    choices = [
        {"index": place, "finish_reason": "stop"}
        | ({"message": {"role": "assistant", "content": each}} if is_chat else {"text": each})
        for place, each in enumerate(texts)
    ]
    return JSONResponse(
        {
            "id": f"{model}-{COUNTS[model]}",
            "object": "chat.completion" if is_chat else "text_completion",
            "created": 1,
            "model": model,
            "choices": choices,
            "usage": {"prompt_tokens": 1000, "completion_tokens": 1000, "total_tokens": 2000},
        }
    )


async def parts(model: str, text: str, is_chat: bool):
    kind = "chat.completion.chunk" if is_chat else "text_completion"
    base = {"id": f"{model}-{COUNTS[model]}", "object": kind, "created": 1, "model": model}
    for word in text.split(" "):
        said = {"delta": {"content": word + " "}} if is_chat else {"text": word + " "}
        yield f"data: {json.dumps(base | {'choices': [{'index': 0, 'finish_reason': None, **said}]})}\n\n"
        await asyncio.sleep(0.01)
        if model == "midway":
            return
    yield "data: [DONE]\n\n"


async def counts(request: Request) -> Response:
    return JSONResponse(COUNTS)


if __name__ == "__main__":
    routes = [Route(f"/v1/{path}", answer, methods=["POST"]) for path in ("chat/completions", "completions")]
    uvicorn.run(Starlette(routes=[*routes, Route("/counts", counts)]), port=int(sys.argv[1]), log_level="warning")
