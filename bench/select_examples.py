"""A tenth of the training examples, chosen in five ways: at random, the hardest (EL2N), as many of each degree of
hardness without the hardest tenth (CCS), greedily (MaxGrad), and by `dt.select`, which is not told whether labels are
wrong.

`python bench/select_examples.py [SET ...] [--seeds 5] [--store FOLDER] [--quick] [--check]`. The mean accuracy on test
examples of a softmax regression that is trained on what was chosen, for as many steps in every case; the same seeds
draw splits, wrong labels and weights. The other ways are written as their papers have them, in a plain loop. With a
store, a run that was stopped goes on, and what was selected is not selected again.
"""

import argparse
import collections
import contextlib
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
from example_sets import logistic
from reporting import Bar, finish
from torch.utils.data import DataLoader, Subset

import dovetail as dt

PROGRAM = f"{Path(__file__).with_name('example_sets.py')}:logistic"
FRACTION = 0.1
# Of a student on the way, and of the training on what was chosen in the end.
STEPS, FINAL_STEPS = 200, 400
# Which part of the labels is wrong in each set.
CASES = {"digits": (0.0, 0.1), "breast cancer": (0.0,), "generated": (0.1,)}
BARS = {("digits", 0.0): 0.935, ("digits", 0.1): 0.91}
BELOW_RANDOM = -0.01
# What `dt.select` is asked with: its defaults for the digits, and for the others less, which takes a fifth of the time.
SHORT = {"steps": 100, "splits": 3, "strengths": [0.0, 0.1, 0.2]}
OPTIONS: dict[str, dict[str, Any]] = {"digits": {"steps": STEPS}, "breast cancer": SHORT, "generated": SHORT}
QUICK = {"steps": 30, "rounds": 3, "splits": 2, "strengths": [0.0, 0.1]}


class Plain:
    """One data set with one seed, and a plain loop to train on some of its examples."""

    def __init__(self, data: str, wrong: float, seed: int) -> None:
        self.arguments: dict[str, Any] = {"data": data, "wrong": wrong, "seed": seed}
        self.data: Any = logistic(**self.arguments).batches.dataset  # type: ignore[attr-defined]
        self.labels = self.data.tensors[1]
        self.count, self.kept = len(self.data), round(FRACTION * len(self.data))
        self.generator = numpy.random.default_rng([seed, 1])  # not the one that has drawn the wrong labels

    def train(self, examples: Any, *, steps: int) -> dt.Training:
        """The program, trained on these examples."""
        torch.manual_seed(self.arguments["seed"])
        training = logistic(**self.arguments)
        chosen = examples if isinstance(examples, Subset) else Subset(self.data, [int(each) for each in examples])
        loader, taken = DataLoader(chosen, batch_size=32, shuffle=True), 0
        optimizer: Any = training.optimizer
        assert training.loss is not None
        while taken < steps:
            for batch in loader:
                optimizer.zero_grad()
                loss: Any = training.loss(training.model, batch)
                loss.backward()
                optimizer.step()
                taken += 1
                if taken == steps:
                    break
        return training

    def accuracy(self, examples: Any) -> float:
        """On the test examples, after training on these."""
        training = self.train(examples, steps=FINAL_STEPS)
        assert training.evaluate is not None
        with torch.no_grad():
            return training.evaluate(training.model)["accuracy"]

    def errors(self, examples: Any) -> Any:
        """The norm of p - y of every example, under a student of these."""
        training = self.train(examples, steps=STEPS)
        with torch.no_grad():
            outputs = training.model(self.data.tensors[0])
        targets = torch.nn.functional.one_hot(self.labels, outputs.shape[1])
        return (outputs.softmax(dim=1) - targets).norm(dim=1).numpy()

    def everything(self) -> Any:
        """All examples."""
        return range(self.count)

    def random(self) -> Any:
        """A tenth, drawn."""
        return self.generator.choice(self.count, self.kept, replace=False)

    def el2n(self) -> Any:
        """The tenth with the largest errors early in training."""
        return numpy.argsort(-self.errors(self.everything()))[: self.kept]

    def ccs(self) -> Any:
        """Without the hardest tenth, as many from each of fifty strata, smallest first."""
        errors = self.errors(self.everything())
        left = numpy.argsort(errors)[: round(0.9 * self.count)]
        edges = numpy.linspace(errors[left].min(), errors[left].max(), 51)[1:-1]
        place = numpy.searchsorted(edges, errors[left], side="right")
        strata = sorted((left[place == each] for each in numpy.unique(place)), key=len)
        chosen: list[int] = []
        for number, members in enumerate(strata):
            share = min(len(members), (self.kept - len(chosen)) // (len(strata) - number))
            chosen += self.generator.choice(members, share, replace=False).tolist()
        return chosen

    def maxgrad(self) -> Any:
        """Ten times: fit on what is chosen, add what is hardest."""
        sizes = [round(self.kept * part / 10) for part in range(1, 11)]
        chosen = self.generator.choice(self.count, sizes[0], replace=False).tolist()
        for size in sizes[1:]:
            errors = self.errors(chosen)
            errors[chosen] = -1.0
            chosen += numpy.argsort(-errors)[: size - len(chosen)].tolist()
        return chosen


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("sets", nargs="*", metavar="SET", help=", ".join(CASES))
    arguments.add_argument("--seeds", type=int, default=5)
    arguments.add_argument("--store", type=Path, help="where students are kept; else in a folder that is removed")
    arguments.add_argument("--check", action="store_true", help="end with 1 where a bar is missed")
    arguments.add_argument("--quick", action="store_true", help="one seed of the digits, few steps; writes nothing")
    chosen = arguments.parse_args()
    sets = ["digits"] if chosen.quick else chosen.sets or list(CASES)
    if unknown := set(sets) - set(CASES):
        arguments.error(f"SET must be one of {', '.join(CASES)}, got {', '.join(sorted(unknown))}")
    seeds, options = (1, {"digits": QUICK}) if chosen.quick else (chosen.seeds, OPTIONS)
    with contextlib.ExitStack() as stack:
        store = chosen.store or Path(stack.enter_context(tempfile.TemporaryDirectory())) / "store"
        rows = [one_case(data, wrong, seeds, store, options[data]) for data in sets for wrong in CASES[data]]
    bars = [] if chosen.quick else [bar for row in rows for bar in bars_of(row)]
    return finish("select_examples", rows, bars, check=chosen.check, quick=chosen.quick, part_by="data")


def one_case(data: str, wrong: float, seeds: int, store: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Mean accuracies of one data set with so many wrong labels, seed by seed, and in each seed way by way."""
    found: dict[str, list[float]] = collections.defaultdict(list)
    taken: list[str] = []
    for seed in range(seeds):
        plain = Plain(data, wrong, seed)
        ways: dict[str, Callable[[], Any]] = {
            "all": plain.everything,
            "random": plain.random,
            "el2n": plain.el2n,
            "ccs": plain.ccs,
            "maxgrad": plain.maxgrad,
        }
        for name, way in ways.items():
            found[name].append(plain.accuracy(way()))
        selection = dt.select(PROGRAM, fraction=FRACTION, store=store, progress=False, **plain.arguments, **options)
        found["dt.select"].append(plain.accuracy(selection.of(plain.data)))
        taken.append(f"{selection.method} {selection.strength:.0%}")
        said = ", ".join(f"{name} {values[-1]:.3f}" for name, values in found.items())
        print(f"{data}, {wrong:.0%} wrong, seed {seed}: {said}; chosen: {taken[-1]}", flush=True)
    means = {name: statistics.fmean(values) for name, values in found.items()}
    counted = ", ".join(f"{name} ×{count}" for name, count in collections.Counter(taken).most_common())
    return {"data": data, "wrong_labels": wrong, "kept": FRACTION, **means, "chosen": counted}


def bars_of(row: dict[str, Any]) -> list[Bar]:
    """What a row must meet."""
    name = f"{row['data']}, {row['wrong_labels']:.0%} wrong"
    least = BARS.get((row["data"], row["wrong_labels"]))
    own = [] if least is None else [Bar(f"{name}, accuracy", row["dt.select"], least=least)]
    return [*own, Bar(f"{name}, accuracy above random", row["dt.select"] - row["random"], least=BELOW_RANDOM)]


if __name__ == "__main__":
    sys.exit(main())
