"""Windows of rows with a planted drift, for tests of drift."""

import numpy as np


def window(draws, count, *, where=None, slower=0.0, wrong=0.0, more=0.0):
    """Rows of three attributes, two metrics, a label and a prediction; for those of `where`, `m` higher by `slower`,
    and a share `wrong` more of predictions wrong; `more` of the rows are turned into such ones."""
    table = {name: draws.integers(0, size, count) for name, size in (("a", 3), ("b", 5), ("c", 20))}
    turned = draws.random(count) < more
    for name, value in (where or {}).items():
        table[name][turned] = value
    there = np.all([table[name] == value for name, value in (where or {}).items()], axis=0) & bool(where)
    table["m"] = draws.normal(size=count) + slower * there
    table["skewed"] = draws.exponential(size=count) ** 3
    table["y"] = draws.integers(0, 2, count)
    wrong_rows = draws.random(count) < 0.02 + wrong * there
    table["predicted"] = np.where(wrong_rows, 1 - table["y"], table["y"])
    return table


COLUMNS = {"attributes": ["a", "b", "c"], "metrics": ["m", "skewed"], "label": "y", "prediction": "predicted"}
