"""Keeps secrets out of events, logs and pages that get sent around: parameters and variables of the environment that
look like one, and their values elsewhere in text.

Knows names and values only; a secret that a program prints on its own is not recognised.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dovetail.vocabulary.records import to_json

MASK = "***"
# Whatever contains these is a secret. Words that end in the others are too, unless the value is a number:
# num_key_value_heads=8 and max_tokens=512 are models' sizes.
_ALWAYS = ("password", "passwd", "passphrase", "secret", "credential")
_UNLESS_NUMBER = ("token", "tokens", "key", "keys")
_WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
# Shorter values would blank out parts of ordinary words. The environment is nobody's choice of names, so more is asked.
_SHORTEST, _SHORTEST_OF_ENVIRONMENT = 4, 8


def is_secret(name: str, value: Any) -> bool:
    """Whether a parameter of that name with that value should not be shown.

    >>> is_secret("api_key", "hf_123"), is_secret("max_tokens", 512), is_secret("dbPassword", 1234)
    (True, False, True)
    """
    if any(word in name.lower() for word in _ALWAYS):
        return True
    ends = any(word.lower().endswith(_UNLESS_NUMBER) for word in _WORDS.findall(name))
    return ends and not _is_number(value)


def masked(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as plain data, secrets replaced, at any depth.

    >>> masked({"width": 128, "hub": {"token": "hf_123"}})
    {'width': 128, 'hub': {'token': '***'}}
    """
    return {name: MASK if is_secret(name, value) else _masked_value(value) for name, value in parameters.items()}


def redactor(parameters: Iterable[Mapping[str, Any]]) -> Callable[[str], str]:
    """A function that masks in any text the secret values of all these parameters.

    >>> redactor([{"token": "hf_123"}])("task-hf_123 failed")
    'task-*** failed'
    """
    return hiding({secret for one in parameters for secret in secrets_of(one)})


def secrets_of(parameters: Mapping[str, Any]) -> set[str]:
    """The secret values among parameters.

    >>> secrets_of({"width": 128, "token": "hf_123"})
    {'hf_123'}
    """
    return {secret for secret in _secrets(parameters) if len(secret) >= _SHORTEST}


def secrets_of_environment(variables: Mapping[str, str]) -> set[str]:
    """The secret values among a process's variables; numbers and words such as `true` are none.

    >>> secrets_of_environment({"HF_TOKEN": "hf_12345", "MAX_TOKENS": "65536000", "HOME": "/home/somebody"})
    {'hf_12345'}
    """
    found = {value for name, value in variables.items() if is_secret(name, value) and not value.isdecimal()}
    return {value for value in found if len(value) >= _SHORTEST_OF_ENVIRONMENT}


def hiding(found: Iterable[str]) -> Callable[[str], str]:
    """A function that masks these values in any text.

    >>> hiding(["hf_123"])("task-hf_123 failed")
    'task-*** failed'
    """
    found = set(found)
    if not found:
        return lambda text: text
    # Longest first, so that a secret that contains another is masked whole.
    pattern = re.compile("|".join(re.escape(secret) for secret in sorted(found, key=len, reverse=True)))
    return lambda text: pattern.sub(MASK, text)


def _is_number(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_number(item) for item in value)
    return value is None or isinstance(value, int | float)


def _masked_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return masked(value)
    if isinstance(value, list | tuple):
        return [_masked_value(item) for item in value]
    return to_json(value)


def _secrets(value: Any, *, secret: bool = False) -> Iterable[str]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _secrets(item, secret=secret or is_secret(name, item))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _secrets(item, secret=secret)
    elif secret and value is not None and not isinstance(value, bool):
        yield str(value)
