"""A request to an OpenAI-compatible endpoint, as far as routing needs to know it, and what an answer to it says."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from dovetail.serve.routing.answer_signals import SAMPLES, majority
from dovetail.serve.server.request_body import RequestRefused

CHAT, COMPLETIONS = "/chat/completions", "/completions"
# Where nobody counts tokens, a token is about so many characters of English.
CHARACTERS = 4.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatRequest:
    """`path` is where it goes, `payload` all that was sent, `query` what routing looks at: the last thing a user said.
    `domain` is what the request's metadata say."""

    path: str
    payload: dict[str, Any]
    model: str
    query: str
    domain: str | None
    is_stream: bool

    @classmethod
    def read(cls, path: str, body: bytes) -> "ChatRequest":
        """Of a body. Raises `RequestRefused` with 400 where it cannot be.

        >>> ChatRequest.read(CHAT, b'{"model": "auto", "messages": [{"role": "user", "content": "Hello"}]}').query
        'Hello'
        """
        try:
            payload = json.loads(body)
            # It is sent on and noted, and Python reads more than can be: NaN, 1e999, half of a pair of surrogates.
            json.dumps(payload, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError) as error:
            raise RequestRefused(400, f"the body must be JSON; found: {error}.") from None
        if not isinstance(payload, dict) or not isinstance(payload.get("model"), str):
            raise RequestRefused(400, "the body must be an object with a 'model', by its name.")
        if not isinstance(payload.get("stream", False), bool | None):
            raise RequestRefused(400, "'stream' must be true or false.")
        metadata = payload.get("metadata") or {}
        domain = metadata.get("domain") if isinstance(metadata, dict) else None
        return cls(
            path=path,
            payload=payload,
            model=payload["model"],
            query=_last_question(payload.get("messages")) if path == CHAT else _prompt(payload.get("prompt")),
            domain=domain if isinstance(domain, str) else None,
            is_stream=bool(payload.get("stream")),
        )

    def tokens_in(self) -> float:
        """About how many tokens are sent."""
        return len(json.dumps(self.payload.get("messages", self.payload.get("prompt")))) / CHARACTERS


def answer_text(found: Mapping[str, Any]) -> str:
    """What the first choice of an answer, or of a part of one, says.

    >>> answer_text({"choices": [{"message": {"content": "Paris"}}]}), answer_text({"choices": [{"text": "Rome"}]})
    ('Paris', 'Rome')
    """
    choices = found.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    inner = first.get("message") or first.get("delta") or {}
    text = inner.get("content") if isinstance(inner, dict) and inner else first.get("text")
    return text if isinstance(text, str) else ""


def sampled_answer(found: Mapping[str, Any]) -> str:
    """What all choices say, separated as samples of one answer are.

    >>> sampled_answer({"choices": [{"text": "4"}, {"text": "5"}]}).split(SAMPLES)
    ['4', '5']
    """
    return SAMPLES.join(answer_text({"choices": [choice]}) for choice in found.get("choices") or [])


def keep_majority(found: Mapping[str, Any]) -> dict[str, Any]:
    """The answer with one choice, the first that comes to what most of them do.

    >>> keep_majority({"choices": [{"text": "5"}, {"text": "is 4"}, {"text": "4"}]})["choices"]
    [{'text': 'is 4', 'index': 0}]
    """
    texts = sampled_answer(found).split(SAMPLES)
    chosen = found["choices"][texts.index(majority(texts))]
    return {**found, "choices": [{**chosen, "index": 0}]}


def tokens_of(found: Mapping[str, Any], *, tokens_in: float, characters_out: int) -> tuple[float, float]:
    """Tokens sent and answered, as the model counts them, or by their characters where it does not."""
    usage = found.get("usage")
    counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")] if isinstance(usage, dict) else [None]
    if all(isinstance(count, int | float) and 0 <= count < 1e12 for count in counts):
        return float(counts[0] or 0), float(counts[1] or 0)
    return tokens_in, characters_out / CHARACTERS


def _last_question(messages: Any) -> str:
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise RequestRefused(400, "'messages' must be a list of objects with a role and content, and not be empty.")
    last = next((each for each in reversed(messages) if each.get("role") == "user"), messages[-1])
    content = last.get("content")
    if isinstance(content, list):
        content = "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    if content is not None and not isinstance(content, str):
        raise RequestRefused(400, "the content of a message must be text, or a list of parts.")
    return content or ""


def _prompt(prompt: Any) -> str:
    parts = prompt if isinstance(prompt, list) else [prompt]
    if not parts or not all(isinstance(part, str) for part in parts):
        raise RequestRefused(400, "'prompt' must be text, or a list of texts.")
    return "\n".join(parts)
