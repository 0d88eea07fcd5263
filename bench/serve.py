"""Cascades by `dt.CascadeClassifier`, beside the plain pipeline that they are made of.

`python bench/serve.py [products] [promise] [digits] [plain] [top] [--quick] [--check]`

`products`: 40,000 offers, of which a title names most plainly what it is and a long description, misspelled, tells the
rest; groups of features are counts of the title, its words, and pieces of words of the description, behind a logistic
regression. What 20,000 fresh offers take, in seconds of CPU, medians of three by turns, and how many fewer are right.
`promise`: 200 cascades, each from rows, splits and models of its own, 6,000 rows of numbers for each (the promise does
not depend on what features are made of, and texts would take an hour), promised to lose at most 0.5 points: in how many
were more of 20,000 fresh rows answered wrongly that the whole would have answered rightly? `digits`: a cascade of
models of `recipes/digits.py`, trained by `dt.run` on digits that move (`moving_digits.py`). `plain`: titles that say
nothing, so that no cascade pays. `top`: the best hundred of a million rows of numbers, 100 times. `--quick` takes few
rows and writes nothing.
"""

import argparse
import statistics
import sys
import tempfile
import time
from typing import Any

import numpy
import pandas
import torch
from reporting import Bar, finish
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

import dovetail as dt

ROWS = ("products", "promise", "digits", "plain", "top")
LESS_CPU, LOST, BROKEN, DIGITS, SLOWER, TOP_LESS_CPU = 5.0, 0.001, 0.05, 2.0, 1.02, 8.0
TRIALS, TOP_TRIALS = 200, 100
WORDS = 3000
SIGNS = 60


def offers(count: int, *, seed: int, words_of_text: int = 60) -> tuple[pandas.DataFrame, numpy.ndarray]:
    """Offers of two kinds. Of 100 titles 88 have signs of their kind; descriptions have them too, misspelled."""
    of_words = numpy.random.default_rng(0)
    letters = numpy.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = numpy.array(["".join(of_words.choice(letters, size=size)) for size in of_words.integers(4, 10, WORDS)])
    draw = numpy.random.default_rng(seed)
    labels = draw.integers(0, 2, count)
    titles, descriptions = [], []
    for label in labels:
        title = list(draw.choice(words[2 * SIGNS :], size=8))
        signs = words[label * SIGNS : (label + 1) * SIGNS]
        if draw.random() < 0.88:
            title[:3] = draw.choice(signs, size=3)
        text = list(draw.choice(words[2 * SIGNS :], size=words_of_text))
        text[:10] = [_misspelled(word, draw) for word in draw.choice(signs, size=10)]
        titles.append(" ".join(title))
        descriptions.append(" ".join(text))
    frame = pandas.DataFrame({"title": titles, "description": descriptions})
    flips = draw.random(count) < 0.01  # nobody is always right
    return frame, numpy.where(flips, 1 - labels, labels)


def _misspelled(word: str, draw: numpy.random.Generator) -> str:
    place = int(draw.integers(0, len(word)))
    return word[:place] + "xq"[int(draw.integers(0, 2))] + word[place + 1 :]


def lengths(titles: Any) -> numpy.ndarray:
    """Counts of a title."""
    return numpy.array([[len(title), title.count(" "), title.count("e")] for title in titles], dtype=float)


def pipeline(*, pieces: int, longest: int = 5) -> Pipeline:
    """The plain one, with so many columns for pieces of words of up to so many letters."""
    features = ColumnTransformer(
        [
            ("counts", Pipeline([("count", FunctionTransformer(lengths)), ("scale", StandardScaler())]), "title"),
            ("words", TfidfVectorizer(), "title"),
            (
                "pieces",
                HashingVectorizer(analyzer="char_wb", ngram_range=(2, longest), n_features=pieces),
                "description",
            ),
        ]
    )
    return Pipeline([("features", features), ("model", LogisticRegression(max_iter=200))])


def seconds_of(call: Any) -> tuple[float, Any]:
    began = time.process_time()
    found = call()
    return time.process_time() - began, found


def compared(name: str, cascade: dt.CascadeClassifier, X: Any, y: numpy.ndarray, rounds: int) -> dict[str, Any]:
    """A row: the cascade and the pipeline it was made of on fresh rows."""
    plain, ours = [], []
    for _ in range(rounds):
        seconds, expected = seconds_of(lambda: cascade.plain_.predict(X))
        plain.append(seconds)
        seconds, found = seconds_of(lambda: cascade.predict(X))
        ours.append(seconds)
    before, now = statistics.median(plain), statistics.median(ours)
    return {
        "row": name,
        "rows": len(y),
        "plain CPU s": before,
        "cascade CPU s": now,
        "times": before / now,
        "expected": 1 / cascade.expected_share_,
        "accuracy": float((expected == y).mean()),
        "lost": float((expected == y).mean() - (found == y).mean()),
        "stages": " > ".join("+".join(groups) for groups in cascade.stages_) or cascade.why_plain_,
    }


def products(*, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """How much less it takes."""
    rows, fresh, pieces = (3000, 500, 1 << 12) if quick else (40_000, 20_000, 1 << 18)
    X, y = offers(rows, seed=1)
    cascade = dt.CascadeClassifier(pipeline(pieces=pieces), lose=0.02 if quick else LOST).fit(X, y)
    row = compared("products", cascade, *offers(fresh, seed=2), rounds=1 if quick else 3)
    return [row], [
        Bar("products, times less CPU", row["times"], least=LESS_CPU),
        Bar("products, accuracy lost", row["lost"], most=LOST),
    ]


def signals(count: int, *, seed: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Rows of two kinds. Of 100 rows 88 show it plainly in the first two numbers; all do in the other six, less so, by
    how far they are from the origin."""
    draw = numpy.random.default_rng(seed)
    labels = draw.integers(0, 2, count)
    X = draw.normal(size=(count, 8))
    shown = draw.random(count) < 0.88
    X[shown, :2] += 2.0 * (2 * labels[shown, None] - 1)
    X[:, 2:] *= 1 + labels[:, None]
    flips = draw.random(count) < 0.01  # nobody is always right
    return X, numpy.where(flips, 1 - labels, labels)


def promise(*, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """How often a promise is broken."""
    trials, count = (3, 2500) if quick else (TRIALS, 6000)
    lose = 0.01 if quick else 0.005
    fresh, labels = signals(500 if quick else 20_000, seed=3)
    broken, cascades, harms = 0, 0, []
    for trial in range(trials):
        X, y = signals(count, seed=100 + trial)
        radial = Nystroem(gamma=0.05, n_components=100, random_state=trial)
        features = ColumnTransformer([("plain", "passthrough", [0, 1]), ("radial", radial, list(range(8)))])
        whole = Pipeline([("features", features), ("model", LogisticRegression(max_iter=200))])
        cascade = dt.CascadeClassifier(whole, lose=lose, seed=trial).fit(X, y)
        lost = ((cascade.plain_.predict(fresh) == labels) & (cascade.predict(fresh) != labels)).mean()
        harms.append(float(lost))
        cascades += bool(cascade.stages_)
        broken += bool(lost > lose)
    row = {
        "row": "promise",
        "rows": count,
        "trials": trials,
        "cascades": cascades,
        "lost": statistics.mean(harms),
        "lost at worst": max(harms),
        "broken": broken / trials,
    }
    return [row], [
        Bar(f"promise, broken in this share of {trials}, to lose at most {lose:g}", row["broken"], most=BROKEN),
        Bar(f"promise, cascades among {trials}", cascades, least=1 if quick else trials // 2),
    ]


def digits(*, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """Perceptrons and convolutional networks of several sizes, as `dt.run` trains them on pictures that move."""
    from moving_digits import draw, moving

    workload = dt.join(
        dt.grid(moving, kind="mlp", size=[64] if quick else [64, 256, 512], epochs=4 if quick else 40),
        dt.grid(moving, kind="cnn", size=[4] if quick else [8, 16, 32, 48], epochs=2 if quick else 40),
        name="moving digits",
    )
    count = 1000 if quick else 20_000
    torch.set_num_threads(1)  # threads that wait for one another spin, which counts as computing
    with tempfile.TemporaryDirectory() as home:
        result = dt.run(workload, store=home, progress=False)
        held_out = draw(count, seed=1)
        cascade = dt.cascade(result, metric="accuracy", lose=0.02 if quick else LOST, calibrate=held_out)
        plain = result.best("accuracy").model()
    rows, truth = draw(count, seed=2)
    before, now = [], []
    with torch.inference_mode():
        for _ in range(1 if quick else 3):
            seconds, expected = seconds_of(lambda: torch.cat([plain(part).argmax(1) for part in rows.split(64)]))
            before.append(seconds)
            seconds, found = seconds_of(lambda: torch.cat([cascade.predict(part) for part in rows.split(64)]))
            now.append(seconds)
    row = {
        "row": "digits",
        "rows": count,
        "plain CPU s": statistics.median(before),
        "cascade CPU s": statistics.median(now),
        "times": statistics.median(before) / statistics.median(now),
        "expected": 1 / cascade.expected_share,
        "accuracy": float((expected == truth).float().mean()),
        "lost": float((expected == truth).float().mean() - (found == truth).float().mean()),
        "stages": str(cascade),
    }
    return [row], [
        Bar("digits, times less CPU", row["times"], least=DIGITS),
        Bar("digits, accuracy lost", row["lost"], most=LOST),
    ]


def plain(*, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """Offers whose titles say nothing: no cascade pays, and what is left is the pipeline."""
    rows, fresh, pieces = (1500, 500, 1 << 12) if quick else (20_000, 10_000, 1 << 18)
    X, y = offers(rows, seed=1)
    draw = numpy.random.default_rng(0)
    X["title"] = draw.permutation(X["title"])
    cascade = dt.CascadeClassifier(pipeline(pieces=pieces), lose=0.02 if quick else LOST).fit(X, y)
    unseen, labels = offers(fresh, seed=2)
    unseen["title"] = draw.permutation(unseen["title"])
    row = compared("plain", cascade, unseen, labels, rounds=1 if quick else 5)
    return [row], [Bar("plain, CPU over the pipeline where no cascade pays", 1 / row["times"], most=SLOWER)]


def features_of(count: int, *, seed: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Rows of 16 numbers of which a tenth is wanted, by a sum that is nearly a straight one."""
    draw = numpy.random.default_rng(seed)
    X = draw.normal(size=(count, 16))
    score = X @ numpy.linspace(1, 0.1, 16) + 0.5 * numpy.sin(2 * X[:, 0]) * X[:, 1] + draw.logistic(0, 0.3, count)
    return X, (score > numpy.quantile(score, 0.9)).astype(int)


def top(*, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """The best hundred of a million, by a straight sum first and by 100 radial functions for those that are left."""
    rows, fresh, trials, components = (6000, 5000, 2, 50) if quick else (40_000, 1_000_000, TOP_TRIALS, 100)
    before, now, precisions = [], [], []
    for trial in range(trials):
        features = FeatureUnion(
            [("straight", FunctionTransformer()), ("radial", Nystroem(n_components=components, random_state=0))]
        )
        plain = Pipeline([("features", features), ("model", LogisticRegression(max_iter=100))])
        cascade = dt.CascadeClassifier(plain, top_k=20 if quick else 100, confidence=0.99, seed=trial)
        cascade.fit(*features_of(rows, seed=1000 + trial))
        X, _ = features_of(fresh, seed=5000 + trial)
        seconds, expected = seconds_of(lambda: _best(cascade.plain_, X, cascade.top_k))  # noqa: B023
        before.append(seconds)
        seconds, found = seconds_of(lambda: cascade.top(X))  # noqa: B023
        now.append(seconds)
        precisions.append(len({*found} & {*expected}) / len(expected))
        print(f"trial {trial}: {before[-1] / now[-1]:.1f} times, precision {precisions[-1]:.3f}", file=sys.stderr)
    row = {
        "row": "top",
        "rows": fresh,
        "trials": trials,
        "plain CPU s": statistics.median(before),
        "cascade CPU s": statistics.median(now),
        "times": statistics.median(before) / statistics.median(now),
        "precise": sum(each >= 0.95 for each in precisions) / trials,
        "least precision": min(precisions),
    }
    return [row], [
        Bar("top, times less CPU", row["times"], least=TOP_LESS_CPU),
        Bar(f"top, precision of .95 in this share of {trials}", row["precise"], least=0.99),
    ]


def _best(pipeline: Pipeline, X: numpy.ndarray, count: int) -> numpy.ndarray:
    """What a user would do: score a chunk after another, since the features of all would not fit."""
    parts = [pipeline.decision_function(X[at : at + 50_000]) for at in range(0, len(X), 50_000)]
    return numpy.argsort(-numpy.concatenate(parts))[:count]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("rows", nargs="*", default=list(ROWS), metavar="ROW", help=", ".join(ROWS))
    arguments.add_argument("--check", action="store_true", help="end with 1 where a bar is missed")
    arguments.add_argument("--quick", action="store_true", help="few rows; writes nothing")
    chosen = arguments.parse_args()
    if unknown := set(chosen.rows) - set(ROWS):
        arguments.error(f"ROW must be one of {', '.join(ROWS)}, got {', '.join(sorted(unknown))}")
    makers = {"products": products, "promise": promise, "digits": digits, "plain": plain, "top": top}
    code = 0
    for name in chosen.rows:  # written one by one: whoever is stopped midway keeps what was measured
        code |= finish(
            "serve", *makers[name](quick=chosen.quick), check=chosen.check, quick=chosen.quick, part_by="row"
        )
    sys.exit(code)


if __name__ == "__main__":
    main()
