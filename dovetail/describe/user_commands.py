"""Commands of the user's own, which print prices or provide nodes: asked, and ended where they do not answer."""

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence

from dovetail.vocabulary import DovetailError
from dovetail.vocabulary.units import show_seconds
from dovetail.vocabulary.user_text import shorten

# What is wrong is to be named within a minute, the rest of which is for whoever asks.
ANSWER_SECONDS = 50.0


def split_command(text: str) -> list[str]:
    """The words of a command; none where nothing such can be run.

    >>> split_command("echo 'two words'"), split_command("no-such-script"), split_command("echo 'one")
    (['echo', 'two words'], [], [])
    """
    try:
        words = shlex.split(text)
    except ValueError:  # a quotation that does not end
        return []
    return words if words and shutil.which(words[0]) else []


def ask_command(words: Sequence[str], *, what: str, answer_seconds: float = ANSWER_SECONDS) -> str:
    """What a command prints. Raises `DovetailError`, in which it is called `what`, where it prints nothing readable.

    >>> ask_command(["echo", "hello"], what="a command")
    'hello\\n'
    """
    shown = f"{what} ({shlex.join(words)})"
    try:
        # A group of its own: what a script waits for is ended with it.
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise DovetailError(
            f"{shown} must run; found: {error}. A script begins with a line such as #!/bin/sh."
        ) from None
    with process:
        try:
            out, err = process.communicate(timeout=answer_seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise DovetailError(
                f"{shown} must answer within {show_seconds(answer_seconds)}; it did not, and was ended. Have it return "
                f"as soon as it has asked for what it is to do, its output closed in what goes on."
            ) from None
    if process.returncode:
        said = shorten(" ".join(err.decode(errors="replace").split()), most=500) or "nothing"
        raise DovetailError(f"{shown} must end with 0; it ended with {process.returncode} and said: {said}.")
    try:
        return out.decode()
    except UnicodeDecodeError as error:
        raise DovetailError(f"{shown} must print text in UTF-8; found: {error}.") from None
