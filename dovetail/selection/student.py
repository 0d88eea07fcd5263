"""Students as ordinary tasks: a program's own model, loss and optimizer, trained on some of its own examples.

`scoring_student` is trained on all folds but one, and scores that one. `chosen_student` is trained on what a candidate
chooses, and is judged by the fold that was held back; with MaxGrad it chooses on the way, round after round: it is fit
anew on what is chosen so far, and what it finds hardest is added. What students find is in their checkpoints, as part
of where their batches stand, so that a student that is stopped goes on, and the tasks that need it read it there. Knows
trainings and checkpoints; knows nothing of how tasks are run.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy
import torch

from dovetail.selection.choosing import MAXGRAD, Numbers, Scores, choose, fold_of, hardest, round_sizes, screen
from dovetail.selection.examples import Examples, examples_of
from dovetail.selection.gradients import GradientReader
from dovetail.store import folder_of
from dovetail.train import checkpoint
from dovetail.train.base import Training
from dovetail.train.build import build_inner
from dovetail.train.schedulers import Scheduler
from dovetail.train.state import capture, restore, unpack
from dovetail.vocabulary import CheckpointError, Program, ProgramError, Stop, Task

Callback = Callable[[Training, int], None]


class StudentBatches:
    """Batches of chosen examples without end, each epoch in an order of its own, and what a student has found.

    Which batch comes next follows from seed, round and position alone.

    >>> from dovetail.feeds import feed
    >>> batches = StudentBatches(examples_of(feed(range(9)).batch(2)), numbers=numpy.array([3, 5]), seed=0)
    >>> sorted(next(iter(batches)).tolist()), batches.state_dict()["position"]
    ([3, 5], 1)
    """

    def __init__(self, examples: Examples, *, numbers: Numbers, weights: Numbers | None = None, seed: int) -> None:
        self.examples = examples
        self.numbers = numbers
        self._weights = numpy.ones_like(numbers) if weights is None else weights
        self._seed, self._round, self._position = seed, 0, 0
        self._scored, self._scores, self._classes = numpy.empty(0, dtype=numpy.int64), numpy.empty(0), 0

    def __len__(self) -> int:
        """An epoch of the program's own, by which its schedules count."""
        return self._batches_in(len(self.examples))

    def __iter__(self) -> Iterator[Any]:
        drawn, order = (-1, -1), self.numbers
        while True:
            epoch, place = divmod(self._position, self._batches_in(int(self._weights.sum())))
            if drawn != (self._round, epoch):
                drawn, generator = (self._round, epoch), numpy.random.default_rng([self._seed, self._round, epoch])
                order = generator.permutation(numpy.repeat(self.numbers, self._weights))
            size = min(self.examples.batch_size, len(order))
            self._position += 1  # before the batch is handed out, so that a state taken after it leads to the next
            yield self.examples.read(order[place * size : (place + 1) * size].tolist(), epoch=epoch)

    def grow(self, more: Numbers) -> None:
        """Add examples, each once an epoch, and begin the next round."""
        self.numbers = numpy.concatenate([self.numbers, more])
        self._weights = numpy.ones_like(self.numbers)
        self._round, self._position = self._round + 1, 0

    def keep_scores(self, numbers: Numbers, scores: Scores, *, classes: int) -> None:
        """Keep what was found of the examples of these numbers, for whoever reads the checkpoint."""
        self._scored, self._scores, self._classes = numbers, scores, classes

    def state_dict(self) -> dict[str, Any]:
        """Where they stand, and what was found."""
        return {
            "round": self._round,
            "position": self._position,
            "numbers": self.numbers,
            "weights": self._weights,
            "scored": self._scored,
            "scores": self._scores,
            "classes": self._classes,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where this state was taken."""
        self._round, self._position = state["round"], state["position"]
        self.numbers, self._weights = state["numbers"], state["weights"]
        self.keep_scores(state["scored"], state["scores"], classes=state["classes"])

    def _batches_in(self, count: int) -> int:
        size = min(self.examples.batch_size, count)
        return count // size if self.examples.drops_last else -(-count // size)


def scoring_student(
    program: dict[str, str], arguments: dict[str, Any], steps: int, folds: int, held: int, seed: int = 0
) -> Training:
    """A student of all folds but `held`, which it scores after `steps` steps."""
    own = _build_own(program, arguments, seed)
    examples = examples_of(own.batches)
    fold = fold_of(_check_count(examples, folds), folds=folds, seed=seed)
    batches = StudentBatches(examples, numbers=numpy.flatnonzero(fold != held), seed=seed)
    rest = numpy.flatnonzero(fold == held)

    def score_rest(training: Training, step: int) -> None:
        if step == steps:
            scores, _, classes = read_gradients(training, batches.examples, rest)
            batches.keep_scores(rest, scores, classes=classes)

    return _student(own, batches, last_step=steps, callbacks=(score_rest,))


def chosen_student(
    program: dict[str, str],
    arguments: dict[str, Any],
    steps: int,
    folds: int,
    held: int | None,
    method: str,
    strength: float,
    fraction: float,
    rounds: int,
    scores: list[str],
    seed: int = 0,
) -> Training:
    """A student of what a candidate chooses out of all examples but those of the fold `held`, by which it is judged
    (None: out of all). `scores` says where the checkpoints of the scoring students are."""
    own = _build_own(program, arguments, seed)
    examples = examples_of(own.batches)
    fold = fold_of(len(examples), folds=folds, seed=seed)
    numbers = numpy.flatnonzero(fold != (-1 if held is None else held))
    found, _ = read_scores(scores)
    count, pool = count_of(fraction, len(numbers)), screen(numbers, found, strength=strength)
    generator = numpy.random.default_rng([seed, 1, folds if held is None else held])
    if method == MAXGRAD:
        sizes = round_sizes(min(count, len(pool)), rounds=rounds)
        first = generator.choice(pool, sizes[0], replace=False)
        batches = StudentBatches(examples, numbers=first, seed=seed)
        callbacks: tuple[Callback, ...] = (_make_growth(own, batches, pool, sizes, steps=steps, rounds=rounds),)
    else:
        chosen, weights = choose(method, pool, found, count=count, generator=generator)
        batches, callbacks = StudentBatches(examples, numbers=chosen, weights=weights, seed=seed), ()
    rest = numpy.flatnonzero(fold == held) if held is not None else None
    last_step = steps * (rounds if method == MAXGRAD else 1)
    return _student(own, batches, last_step=last_step, callbacks=callbacks, judged_by=rest)


def count_of(fraction: float, count: int) -> int:
    """How many of so many examples a fraction is: one at least.

    >>> count_of(0.1, 1797), count_of(0.001, 5)
    (180, 1)
    """
    return max(1, round(fraction * count))


def read_gradients(training: Training, examples: Examples, numbers: Numbers) -> tuple[Scores, dict[str, float], int]:
    """The scores of these examples, how good the model is on them, and how many classes there are, 0 where it is no
    classifier: then it has no accuracy, and its loss says how good it is."""
    reader = GradientReader(training)
    norms: list[torch.Tensor] = []
    loss, correct, classes = 0.0, 0, set[int]()
    for start in range(0, len(numbers), examples.batch_size):
        part = numbers[start : start + examples.batch_size].tolist()
        found = reader.read(part, examples.read)
        norms.append(found.norms)
        loss, correct = loss + found.loss * len(part), correct + int(found.correct.sum())
        classes.add(found.classes)
    of_one = classes.pop() if len(classes) == 1 else 0
    metrics = {"loss": loss / len(numbers), **({"accuracy": correct / len(numbers)} if of_one else {})}
    return torch.cat(norms).double().numpy(), metrics, of_one


def read_scores(folders: Sequence[str]) -> tuple[Scores, int]:
    """The scores of all examples by number, from the checkpoints of scoring students in these folders, and how many
    classes there are, 0 where they are no classifiers."""
    found = [_read_batches(folder) for folder in folders]
    scores = numpy.full(sum(len(each["scored"]) for each in found), numpy.nan)
    for each in found:
        scores[each["scored"]] = each["scores"]
    if not numpy.isfinite(scores).all():
        raise ProgramError(
            "every example must have a gradient that is finite; some have none. Train students for fewer steps, or at "
            "a lower rate."
        )
    return scores, min(each["classes"] for each in found)


def read_chosen(folder: str) -> Numbers:
    """The examples that a student has chosen, sorted, from its checkpoint."""
    numbers: Numbers = _read_batches(folder)["numbers"]
    return numpy.sort(numbers)


def _read_batches(folder: str) -> Mapping[str, Any]:
    state, _ = checkpoint.recover(folder_of(folder), set_aside=False)
    if state is None:
        raise CheckpointError(
            f"a student's checkpoint must be in {folder}; there is none. Choose again with --fresh, fresh=True."
        )
    return unpack(state.values["feed"], state.tensors)["batches"]  # type: ignore[no-any-return]


def _build_own(program: Mapping[str, str], arguments: Mapping[str, Any], seed: int) -> Training:
    """What the program builds, by itself."""
    given = Program(**program)
    task = Task(name=given.function, program=given, parameters={**arguments, "seed": seed}, stop=Stop(steps=1))
    training = build_inner(task)
    if training.loss is None:
        raise ProgramError(
            "examples are scored by their losses; a Training with a step function of its own has none. Choose with a "
            "program that has a loss, on the same data."
        )
    return training


def _check_count(examples: Examples, folds: int) -> int:
    count = len(examples)
    if count < 2 * folds:
        raise ProgramError(
            f"there must be at least two examples for each of {folds} splits to choose from; there are {count}. Give "
            f"fewer splits, or more examples."
        )
    return count


def _student(
    own: Training,
    batches: StudentBatches,
    *,
    last_step: int,
    callbacks: tuple[Callback, ...] = (),
    judged_by: Numbers | None = None,
) -> Training:
    """The program's training with these batches, judged by these examples after its last step."""

    def evaluate(model: torch.nn.Module) -> Mapping[str, float]:
        assert judged_by is not None
        with torch.enable_grad():
            return read_gradients(dataclasses.replace(own, model=model), batches.examples, judged_by)[1]

    return dataclasses.replace(
        own,
        batches=batches,
        callbacks=(*own.callbacks, *callbacks),
        evaluate=None if judged_by is None else evaluate,
        evaluate_every=last_step,
        keep_best=None,
        shares="",
        # A scheduler that follows a metric has none to follow.
        schedule=None if _follows_metric(own.schedule) else own.schedule,
        schedules={name: each for name, each in own.schedules.items() if not _follows_metric(each)},
        # Its weights are put back between two rounds, which copies of them in bf16 would miss.
        precision="bf16" if own.precision == "bf16-pure" else own.precision,
    )


def _follows_metric(scheduler: Any) -> bool:
    return isinstance(scheduler, Scheduler) and scheduler.metric is not None


def _make_growth(
    own: Training, batches: StudentBatches, pool: Numbers, sizes: Sequence[int], *, steps: int, rounds: int
) -> Callback:
    """MaxGrad: after each round but the last, add what the student finds hardest, and fit it anew."""
    state = capture(own, step=0, feed=None, random=None)
    initial = dataclasses.replace(state, tensors={name: tensor.clone() for name, tensor in state.tensors.items()})

    def add_hardest(training: Training, step: int) -> None:
        if step % steps or step >= steps * rounds:
            return
        rest = numpy.setdiff1d(pool, batches.numbers)
        wanted = next((size for size in sizes if size > len(batches.numbers)), len(batches.numbers))
        more = rest[:0]
        if wanted > len(batches.numbers):
            scores, _, _ = read_gradients(training, batches.examples, rest)
            more = hardest(rest, scores, count=wanted - len(batches.numbers))
        batches.grow(more)
        restore(own, initial)

    return add_hardest
