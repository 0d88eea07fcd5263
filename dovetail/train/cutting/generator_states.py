"""Where generators of random numbers stand: torch's, and those of the host that nothing keys."""

import random
from typing import Any

import numpy
import torch


def generator_states() -> torch.Tensor:
    """Where torch's generators stand: the host's, and the current CUDA device's where CUDA is in use.

    >>> before = generator_states()
    >>> set_generator_states(before)
    """
    host = torch.default_generator.get_state()
    return torch.cat([host, torch.cuda.get_rng_state()]) if torch.cuda.is_initialized() else host


def set_generator_states(states: torch.Tensor) -> None:
    """Put torch's generators where `generator_states` found them."""
    host = len(torch.default_generator.get_state())
    torch.default_generator.set_state(states[:host])
    if len(states) > host:
        torch.cuda.set_rng_state(states[host:])


def host_states() -> Any:
    """Where Python's and NumPy's generators stand, to be compared.

    >>> host_states() == host_states()
    True
    """
    numbers: Any = numpy.random.get_state(legacy=True)
    name, words, *rest = numbers
    return random.getstate(), name, words.tobytes(), rest
