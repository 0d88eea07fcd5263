"""Tables of outcomes whose truth is known."""

import numpy as np

from dovetail.serve.routing import OutcomeTable

WORDS = {"easy": "add two small numbers", "hard": "prove the theorem about primes"}


def rows_of(count=80, *, seed=0, domains=False, answers=False, noise=0.0):
    """The small model answers what is easy; the large one, nearly everything, at thirty times the price."""
    generator = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        kind = ("easy", "hard")[number % 2]
        for model, price in (("small", 0.01), ("large", 0.3)):
            right = kind == "easy" or model == "large"
            row = {
                "query": f"{WORDS[kind]} {number}",
                "model": model,
                "quality": float(right != (generator.random() < noise)),
                "price": price,
                "seconds": 1.0,
            }
            row |= {"domain": kind} if domains else {}
            row |= {"answer": f"so it is {number}" if right else "I do not know"} if answers else {}
            rows.append(row)
    return rows


def table_of(count=80, **how):
    return OutcomeTable.of(rows_of(count, **how))
