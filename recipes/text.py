"""English text that every Python carries: the manual's topics behind `help("...")`.

About 460,000 characters. The text differs between versions of Python, and losses with it: compare runs
under one version only.
"""

from pydoc_data.topics import topics


def manual(*, held_out: float = 0.1) -> tuple[str, str]:
    """The text to train on, and the share at its end that is held out."""
    text = "".join(topics[name] for name in sorted(topics))
    border = round(len(text) * (1 - held_out))
    return text[:border], text[border:]
