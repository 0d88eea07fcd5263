"""A cascade of models that were trained apart: the cheap ones answer what they are sure of."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy
import torch
from torch import nn

from dovetail.serve.cascades.costs import CallCost
from dovetail.serve.cascades.labelled import LabelledInputs, ask_scores, count_inputs, rows_of
from dovetail.serve.cascades.promise import check_promise, least_rows
from dovetail.serve.cascades.thresholds import Verdicts, calibrate, find_thresholds, grow_chain, shares_reached
from dovetail.vocabulary import DovetailError

# Rows of a call when what a model takes is measured, few and many.
_FEW = 4


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _ModelStage:
    """A model, what it takes, and what it says of the rows to choose by."""

    name: str
    model: nn.Module
    cost: CallCost
    scores: torch.Tensor
    accuracy: float


class ModelCascade:
    """Models of one meaning, cheap ones first, each with the sureness from which on it answers. `stages` names those
    before the last with their thresholds, `last` the model that answers the rest; `expected_share` is the share of its
    seconds that the cascade should take, and `why_plain` says why there is no cascade, where there is none.

    >>> cascade = ModelCascade([("small", nn.Identity(), 0.5)], ("large", nn.Identity()))
    >>> cascade.predict(torch.tensor([[1.0, 9.0], [5.0, 5.0]])), cascade.asked
    (tensor([1, 0]), {'small': 2, 'large': 1})
    """

    def __init__(
        self,
        stages: Sequence[tuple[str, nn.Module, float]],
        last: tuple[str, nn.Module],
        *,
        device: torch.device = torch.device("cpu"),  # noqa: B008
        expected_share: float = 1.0,
        why_plain: str = "",
    ) -> None:
        self._models = [model.eval().to(device) for model in (*(each[1] for each in stages), last[1])]
        self._names = [*(each[0] for each in stages), last[0]]
        self.stages = tuple((name, threshold) for name, _, threshold in stages)
        self.last, self.device = last[0], device
        self.expected_share, self.why_plain = expected_share, why_plain
        self.asked: dict[str, int] = dict.fromkeys(self._names, 0)
        self.reached = torch.empty(0, dtype=torch.int64)

    def scores(self, inputs: Any) -> torch.Tensor:
        """What the stage that answers a row gives for each class; `reached` is that stage's number, afterwards."""
        left = torch.arange(count_inputs(inputs))
        self.reached = torch.zeros(len(left), dtype=torch.int64)
        found: torch.Tensor | None = None
        for number, name in enumerate(self._names):
            here = inputs if number == 0 else rows_of(inputs, left)
            scores = ask_scores(self._models[number], here, self.device).cpu()
            self.asked[name] += len(left)
            self.reached[left] = number
            if found is None:
                if not self.stages:
                    return scores
                found = torch.empty(len(left), *scores.shape[1:], dtype=scores.dtype)
            if number == len(self.stages):
                found[left] = scores
                break
            is_sure = sureness_of(scores) >= self.stages[number][1]
            found[left[is_sure]] = scores[is_sure]
            left = left[~is_sure]
            if not len(left):
                break
        assert found is not None
        return found

    def predict(self, inputs: Any) -> torch.Tensor:
        """The class of each row."""
        return self.scores(inputs).argmax(dim=1)

    def __str__(self) -> str:
        if self.why_plain:
            return f"{self.last}, plain: {self.why_plain}"
        stages = " > ".join(f"{name} (from {threshold:.3g})" for name, threshold in self.stages)
        return f"{stages} > {self.last}; {self.expected_share:.0%} of its seconds expected"


def make_cascade(
    models: Mapping[str, Callable[[], nn.Module]],
    last: str,
    rows: LabelledInputs,
    *,
    lose: float,
    confidence: float,
    batch_rows: int = 64,
    device: torch.device = torch.device("cpu"),  # noqa: B008
    seed: int = 0,
) -> ModelCascade:
    """The cascade of some of the models before `last` that takes least, for calls of `batch_rows` rows: half of `rows`
    choose stages and thresholds, on the other half the promise is tested."""
    check_promise(lose, confidence)
    needed = least_rows(lose, confidence)
    whole = models[last]().eval().to(device)
    if len(rows) // 2 < needed:
        reason = (
            f"for a loss of at most {lose:g} with confidence {confidence:g}, {2 * needed} rows must be there to "
            f"choose by and to calibrate with; there are {len(rows)}"
        )
        return ModelCascade([], (last, whole), device=device, why_plain=reason)
    order = torch.from_numpy(numpy.random.default_rng(seed).permutation(len(rows)))
    chosen, fresh = rows.take(order[: len(order) // 2]), rows.take(order[len(order) // 2 :])
    the_last = _measure_stage(last, whole, chosen, batch_rows, device, is_last=True)
    others = [
        _measure_stage(name, model(), chosen, batch_rows, device) for name, model in models.items() if name != last
    ]
    stages = _worth_asking(others, the_last)
    seen = {stage.name: _verdicts(stage.scores, the_last.scores, chosen) for stage in stages}

    def seconds(chain: Sequence[_ModelStage], shares: Sequence[float]) -> float:
        calls = 1 / batch_rows
        costs = [stage.cost for stage in (*chain, the_last)]
        return sum(cost.of(share, calls=calls if share else 0) for cost, share in zip(costs, shares, strict=True))

    def expected_seconds(chain: Sequence[_ModelStage]) -> float:
        verdicts = [seen[stage.name] for stage in chain]
        return seconds(chain, shares_reached(verdicts, find_thresholds(verdicts, lose)))

    chain = grow_chain(stages, expected_seconds, lambda each: sorted(each, key=lambda stage: stage.cost.of(1, calls=0)))
    plain = _all_scores(whole, fresh, batch_rows, device)
    found = calibrate(
        [seen[stage.name] for stage in chain],
        [_verdicts(_all_scores(stage.model, fresh, batch_rows, device), plain, fresh) for stage in chain],
        lambda shares: seconds(chain if len(shares) > 1 else [], shares),
        lose=lose,
        confidence=confidence,
    )
    kept = [(stage.name, stage.model, at) for stage, at in zip(chain, found.thresholds, strict=bool(found.thresholds))]
    return ModelCascade(kept, (last, whole), device=device, expected_share=found.share, why_plain=found.why_plain)


def sureness_of(scores: torch.Tensor) -> torch.Tensor:
    """How far the likeliest class is from the next, as a difference of probabilities."""
    top = scores.float().softmax(dim=1).topk(min(2, scores.shape[1]), dim=1).values
    return top[:, 0] - top[:, -1]


def _measure_stage(
    name: str, model: nn.Module, rows: LabelledInputs, batch_rows: int, device: torch.device, *, is_last: bool = False
) -> _ModelStage:
    """What a stage takes is measured with telling apart what it answers, which for small models takes as long as they
    do."""
    model = model.eval().to(device)
    alone = ModelCascade([] if is_last else [(name, model, -1.0)], (name, model), device=device)
    counted = [(count, rows.take(slice(0, count)).inputs) for count in (_FEW, max(batch_rows, _FEW + 1))]
    cost = CallCost.measure(alone.scores, *counted, clock=_clock(device))
    scores = _all_scores(model, rows, batch_rows, device)
    accuracy = float((scores.argmax(dim=1) == rows.labels).float().mean())
    return _ModelStage(name, model, cost, scores, accuracy)


def _clock(device: torch.device) -> Callable[[], float]:
    if device.type == "cpu":
        return time.process_time

    def waited() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return waited


def _all_scores(model: nn.Module, rows: LabelledInputs, batch_rows: int, device: torch.device) -> torch.Tensor:
    parts = [slice(at, at + batch_rows) for at in range(0, len(rows), batch_rows)]
    return torch.cat([ask_scores(model, rows_of(rows.inputs, part), device).cpu() for part in parts])


def _verdicts(scores: torch.Tensor, last: torch.Tensor, rows: LabelledInputs) -> Verdicts:
    harms = (last.argmax(dim=1) == rows.labels) & (scores.argmax(dim=1) != rows.labels)
    return Verdicts(sureness_of(scores).numpy(), harms.numpy())


def _worth_asking(stages: Sequence[_ModelStage], last: _ModelStage) -> list[_ModelStage]:
    """Those cheaper than the last that no other beats in both what it takes and what it knows."""
    for stage in stages:
        if stage.scores.shape[1] != last.scores.shape[1]:
            raise DovetailError(
                f"the models of a cascade must have the same classes; {stage.name} has {stage.scores.shape[1]} and "
                f"{last.name} has {last.scores.shape[1]}. Give a result whose tasks have one meaning of output."
            )
    found: list[_ModelStage] = []
    best = -1.0
    for stage in sorted(stages, key=lambda each: each.cost.of(1, calls=0)):
        if stage.accuracy > best and stage.cost.of(1, calls=0) < last.cost.of(1, calls=0):
            found.append(stage)
            best = stage.accuracy
    return found
