"""A `Trainer` of transformers, or one of TRL's that trains on given examples, as a `Training`.

The trainer is asked for its data, optimizer, schedule, loss and evaluation in the way in which its own `train()` asks;
it never trains. Knows transformers as far as its `Trainer` has public methods, and a few attributes beside them.
"""

import contextlib
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from dovetail.adapters.attribute_watch import AttributeWatch
from dovetail.adapters.drawn_order import keep_order, reorder
from dovetail.adapters.extras import require
from dovetail.adapters.hf_callbacks import keep_callbacks
from dovetail.adapters.step_batches import BatchPlace, StepBatches, weight_of
from dovetail.adapters.step_code import classes_above, names_read
from dovetail.train import Scheduler, Training
from dovetail.train.fuse.fusibility import difference
from dovetail.train.loop import tensors_in
from dovetail.vocabulary import ProgramError

LEAST_VERSION = "4.50"
# What of a trainer enters its own compute_loss; one of the user's is looked at for what else it reads.
_OF_LOSS = frozenset({"label_smoother", "compute_loss_func", "model_accepts_loss_kwargs", "loss_is_scaled_for_ga"})
_BESIDES = (
    *("__init__", "evaluate", "evaluation_loop", "prediction_step", "predict", "log", "save_model", "train"),
    *("create_optimizer", "create_scheduler", "create_optimizer_and_scheduler", "get_train_dataloader"),
    *("get_eval_dataloader", "get_test_dataloader", "_get_train_sampler", "_get_eval_sampler"),
)


def from_trainer(trainer: Any) -> Training:
    """A `transformers.Trainer` as a `dt.Training`, to be planned, fused and resumed like any other; peft's models and
    TRL's `SFTTrainer` included.

    - Taken over: model, datasets and collator, optimizer with its groups, schedule with its warm-up, clipping,
      accumulation, bf16 and fp16, `torch_compile`, label smoothing, `compute_loss` and `compute_loss_func`,
      `compute_metrics`, and `metric_for_best_model` as the best checkpoint to keep. Losses are divided as the
      `Trainer` divides them, by the tokens of all batches of a step where it counts them.
    - How long to train is the task's: give it `steps` or `epochs`. The schedule's length is what the arguments say
      (`max_steps`, or `num_train_epochs`), so let these agree.
    - Batches come in the order of `trainer.train()`, which the arguments' `data_seed` or `seed` draws. A sweep over
      seeds passes its seed on: `TrainingArguments(seed=seed)`.
    - Random numbers inside a step are keyed as in any training (tutorial, 6), so dropout falls otherwise than under
      `train()`.

    >>> from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
    >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1))
    >>> rows = [{"input_ids": row, "labels": row} for row in torch.randint(16, (12, 8))]
    >>> arguments = TrainingArguments(per_device_train_batch_size=4, max_steps=30, learning_rate=1e-3, report_to="none")
    >>> training = from_trainer(Trainer(model=model, args=arguments, train_dataset=rows))
    >>> training.steps_per_epoch(), training.clip_norm
    (3, 1.0)
    """
    transformers = require("transformers", extra="trainer", least=LEAST_VERSION)
    if not isinstance(trainer, transformers.Trainer):
        raise ProgramError(f"dt.from_trainer must be given a transformers.Trainer, got {type(trainer).__name__}.")
    _refuse_arguments(trainer)
    names = _names_of_loss(trainer, transformers.Trainer)
    trainer.args._n_gpu = min(1, trainer.args.n_gpu)  # how many devices a task has must not decide how large a batch is
    trainer._train_batch_size = trainer.args.train_batch_size
    model = trainer.model.to("cpu")
    if trainer.args.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs)
    if trainer.args.torch_compile:  # in place, so that parameters keep their names
        model.compile(backend=trainer.args.torch_compile_backend, mode=trainer.args.torch_compile_mode)
    loader = _train_loader(trainer)
    accumulate = trainer.args.gradient_accumulation_steps
    batches, is_placed = _place(trainer, loader)
    optimizer = trainer.create_optimizer()
    _refuse_optimizer(optimizer)
    steps = _count_steps(trainer.args, _steps_per_epoch(trainer, loader))
    evaluate = TrainerEvaluation(trainer) if trainer.eval_dataset is not None else None
    best, goal = _best_metric(trainer.args) if evaluate is not None else (None, None)
    return Training(
        model=model,
        batches=batches,
        loss=TrainerLoss(trainer, names, accumulate=accumulate, is_placed=is_placed),
        optimizer=optimizer,
        schedule=_schedule(trainer, steps),
        evaluate=evaluate,
        evaluate_every=_evaluate_every(trainer.args, steps) if evaluate is not None else None,
        keep_best=best,
        goal=goal,
        accumulate=accumulate,
        clip_norm=trainer.args.max_grad_norm if trainer.args.max_grad_norm else None,
        precision="bf16" if trainer.args.bf16 else "fp16" if trainer.args.fp16 else "fp32",
        log_every=max(1, min(10, int(trainer.args.logging_steps))),
        callbacks=keep_callbacks(trainer, transformers),
    )


class TrainerLoss:
    """The loss of a batch by the trainer's own `compute_loss`, such that the mean over a step's batches is what the
    trainer minimises. Equal where one member's can stand for another's."""

    __slots__ = ("_accumulate", "_is_placed", "_names", "_trainer", "_watch")

    def __init__(self, trainer: Any, names: frozenset[str] | None, *, accumulate: int, is_placed: bool) -> None:
        self._trainer, self._names, self._accumulate, self._is_placed = trainer, names, accumulate, is_placed
        self._watch = AttributeWatch(["current_gradient_accumulation_steps"])

    def __call__(self, model: nn.Module, batch: Any) -> tuple[torch.Tensor, Mapping[str, Any]]:
        trainer = self._trainer
        batch, extras = batch if self._is_placed else (batch, {})
        items = extras["items"] if "items" in extras else count_items(trainer, [batch])
        trainer.current_gradient_accumulation_steps = self._accumulate
        with self._watch.watching([trainer]), _masks_built(batch):
            # A copy: compute_loss may take the labels out of it.
            loss = trainer.compute_loss(model, dict(batch), num_items_in_batch=items)
        if is_scaled(trainer, items) and self._accumulate > 1:
            loss = loss * self._accumulate  # which the mean over a step's batches divides by
        return loss * extras["weight"] if "weight" in extras else loss, _taken_metrics(trainer)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TrainerLoss):
            return NotImplemented
        if (self._accumulate, self._is_placed, self._names) != (other._accumulate, other._is_placed, other._names):
            return False
        one, its = self._trainer, other._trainer
        return one is its or (self._names is not None and type(one) is type(its) and self._reads_same(one, its))

    __hash__ = None  # type: ignore[assignment]

    def _reads_same(self, one: Any, its: Any) -> bool:
        assert self._names is not None
        pairs = [(one, its, name) for name in (self._names | _OF_LOSS) - {"args"} if name in vars(one)]
        pairs += [(one.args, its.args, name) for name in self._names if name in vars(one.args)]
        return all(difference(getattr(a, name), getattr(b, name, None), what=name) is None for a, b, name in pairs)


@contextlib.contextmanager
def _masks_built(batch: Any) -> Iterator[None]:
    """Within, transformers builds masks without looking whether they mask anything, where several tasks are computed at
    once: each has a mask of its own, and what one of them could do without another needs."""
    masking = sys.modules.get("transformers.masking_utils")
    stacked = any(map(torch._C._functorch.is_batchedtensor, tensors_in(batch)))
    if not stacked or not hasattr(masking, "is_tracing"):
        yield
        return
    own, masking.is_tracing = masking.is_tracing, lambda tensor=None: True  # type: ignore[union-attr]
    try:
        yield
    finally:
        masking.is_tracing = own  # type: ignore[union-attr]


def count_items(trainer: Any, batches: Sequence[Any]) -> Any:
    """How many tokens count in the loss of these batches together, as the trainer counts; None where it does not."""
    device = next((tensor.device for tensor in tensors_in(batches[0])), torch.device("cpu"))
    _, items = trainer.get_batch_samples(iter(batches), len(batches), device)
    return items


def is_scaled(trainer: Any, items: Any) -> bool:
    """Whether `compute_loss` divides by the items of the whole step, so that the trainer does not divide further."""
    said = getattr(trainer, "loss_is_scaled_for_ga", None)
    if said is not None:
        return bool(said)
    return bool((trainer.model_accepts_loss_kwargs and items is not None) or trainer.compute_loss_func is not None)


def _taken_metrics(trainer: Any) -> dict[str, float]:
    """What TRL's trainers put aside of a batch for their log, but for their count of tokens: no checkpoint has it."""
    aside = getattr(trainer, "_metrics", {}).get("train", {})
    found = {name: values[-1] for name, values in aside.items() if values and name != "num_tokens"}
    aside.clear()
    return found


class TrainerEvaluation:
    """The metrics of the trainer's own evaluation loop, `compute_metrics` among them."""

    __slots__ = ("_trainer",)

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def __call__(self, model: nn.Module) -> dict[str, float]:
        sets = self._trainer.eval_dataset
        named = {f"eval_{name}": each for name, each in sets.items()} if isinstance(sets, dict) else {"eval": sets}
        found: dict[str, float] = {}
        with _evaluating(self._trainer, model):
            for prefix, dataset in named.items():
                loader = self._trainer.get_eval_dataloader(dataset)
                loader.device = next(model.parameters()).device
                output = self._trainer.evaluation_loop(
                    loader,
                    description="Evaluation",
                    prediction_loss_only=True if self._trainer.compute_metrics is None else None,
                    metric_key_prefix=prefix,
                )
                found |= output.metrics
        return {name: value for name, value in found.items() if not name.endswith("_preparation_time")}


@contextlib.contextmanager
def _evaluating(trainer: Any, model: nn.Module) -> Iterator[None]:
    """Within, the trainer evaluates this model where it is, prepares nothing and tells nobody."""
    handler, accelerator, arguments = trainer.callback_handler, trainer.accelerator, vars(trainer.args)
    kept = handler.callbacks, accelerator._models, arguments.get("_setup_devices"), trainer.model, trainer.is_in_train
    handler.callbacks, accelerator._models = [], [model]
    arguments["_setup_devices"] = next(model.parameters()).device
    trainer.model = trainer.model_wrapped = model
    trainer.is_in_train = True  # so that weights keep their precision
    try:
        yield
    finally:
        handler.callbacks, accelerator._models, arguments["_setup_devices"], trainer.model, trainer.is_in_train = kept
        trainer.model_wrapped = trainer.model
        accelerator._dataloaders.clear()
        getattr(trainer, "_metrics", {}).get("eval", {}).clear()


def _train_loader(trainer: Any) -> Any:
    """The trainer's batches as a plain loader of torch, in the order of its `train()`."""
    prepared = trainer.get_train_dataloader()
    trainer.accelerator._dataloaders.clear()
    if isinstance(prepared.dataset, IterableDataset):
        return DataLoader(prepared.dataset, batch_size=prepared.batch_size, collate_fn=prepared.collate_fn)
    loader = reorder(prepared, prepared.batch_sampler)
    return keep_order(
        loader, validations=lambda epoch: _evaluation_loaders(trainer, epoch, steps=_steps_per_epoch(trainer, loader))
    )


def _evaluation_loaders(trainer: Any, epoch: int, *, steps: int | None) -> list[Any]:
    """A loader for each that the trainer goes through to evaluate in an epoch: of each, only its beginning draws."""
    sets = trainer.eval_dataset
    if _strategy(trainer.args) == "no" or sets is None or steps is None:
        return []
    every = _evaluate_every(trainer.args, _count_steps(trainer.args, steps)) or steps
    times = (epoch + 1) * steps // every - epoch * steps // every
    one: Any = [0]
    return [DataLoader(one)] * (times * (len(sets) if isinstance(sets, dict) else 1))


def _place(trainer: Any, loader: Any) -> tuple[Any, bool]:
    """The batches with what their losses need to know of their step, where they need to; and whether they do."""
    accumulate = trainer.args.gradient_accumulation_steps
    counts = trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None
    is_ragged = hasattr(loader, "__len__") and len(loader) % accumulate > 0
    if accumulate == 1 or not (counts or is_ragged):
        return loader, False

    def extras(batches: Sequence[Any], place: BatchPlace) -> dict[str, Any]:
        items = count_items(trainer, batches)
        found = {} if items is None else {"items": items}
        # A step of fewer batches is divided by their number, and not by `accumulate`.
        share = 1.0 if is_scaled(trainer, items) else accumulate / place.step_batches
        return found | ({"weight": weight_of(place, share)} if is_ragged else {})

    return StepBatches(loader, accumulate=accumulate, extras=extras), True


def _steps_per_epoch(trainer: Any, loader: Any) -> int | None:
    accumulate: int = trainer.args.gradient_accumulation_steps
    try:
        return max(1, math.ceil(len(loader) / accumulate))
    except TypeError:  # a stream
        return None


def _count_steps(arguments: Any, per_epoch: int | None) -> int:
    """How many steps the arguments ask for, for which the schedule is made."""
    if arguments.max_steps > 0:
        return int(arguments.max_steps)
    if per_epoch is None:
        raise ProgramError(
            "a dataset without a length must go with TrainingArguments(max_steps=...), for which the schedule is made."
        )
    total: int = math.ceil(arguments.num_train_epochs * per_epoch)
    return total


def _schedule(trainer: Any, steps: int) -> Any:
    made = trainer.create_scheduler(num_training_steps=steps)
    if isinstance(made, torch.optim.lr_scheduler.ReduceLROnPlateau):
        return Scheduler(made, metric=_evaluated_name(trainer.args))
    return made


def _strategy(arguments: Any) -> str:
    return str(getattr(arguments.eval_strategy, "value", arguments.eval_strategy))


def _evaluate_every(arguments: Any, steps: int) -> int | None:
    """After how many steps it is evaluated; None where that is at each epoch's end."""
    if _strategy(arguments) != "steps":
        return None
    every = arguments.eval_steps or arguments.logging_steps
    return max(1, int(every if every >= 1 else math.ceil(every * steps)))


def _evaluated_name(arguments: Any) -> str:
    name = arguments.metric_for_best_model or "loss"
    return name if name.startswith("eval_") else f"eval_{name}"


def _best_metric(arguments: Any) -> tuple[str | None, str | None]:
    if arguments.metric_for_best_model is None and not arguments.load_best_model_at_end:
        return None, None
    return _evaluated_name(arguments), "max" if arguments.greater_is_better else "min"


def _names_of_loss(trainer: Any, base: type) -> frozenset[str] | None:
    """What a `compute_loss` of the user's own may read; none where it is the trainer's. Raises `ProgramError` where it
    reads what only `train()` keeps."""
    classes = classes_above(trainer, base)
    names = names_read(classes, besides=_BESIDES) if classes else frozenset()
    own = [each for each in classes if each.__module__.partition(".")[0] != "trl"]
    if own and "state" in (names_read(own, besides=_BESIDES) or ()):
        raise ProgramError(
            f"{own[0].__name__} reads self.state, which only Trainer.train() keeps up to date. Put what depends on the "
            f"step into a schedule, or write a program that returns a dt.Training with a step of its own."
        )
    return names


def _refuse_arguments(trainer: Any) -> None:
    """Raise `ProgramError` for what a training cannot keep."""
    arguments = trainer.args
    refused = {
        "deepspeed": "leave it out: how a model is divided over devices is planned",
        "fsdp": "leave it out: how a model is divided over devices is planned",
        "neftune_noise_alpha": "add the noise in the model's own forward",
        "use_liger_kernel": "apply the kernels to the model before it is given to the Trainer",
        "auto_find_batch_size": "give a batch size: what does not fit is trained in microbatches",
    }
    for name, advice in refused.items():
        if getattr(arguments, name, None):
            raise ProgramError(f"TrainingArguments({name}=...) cannot be kept; {advice}.")
    if arguments.world_size > 1:
        raise ProgramError(
            f"a program must be built by one process; the arguments found {arguments.world_size}. Start it with "
            f"dovetail run, not with torchrun: each task is given its devices."
        )
    if trainer.train_dataset is None:
        raise ProgramError("the Trainer must have a train_dataset; it has none.")
    for method in ("_prepare_inputs", "training_step", "_inner_training_loop", "train"):
        owner = next(each for each in type(trainer).__mro__ if method in vars(each))
        package = owner.__module__.partition(".")[0]
        if package != "transformers" and (package != "trl" or method == "_prepare_inputs"):
            raise ProgramError(
                f"{owner.__name__}.{method} takes the step by itself, so it cannot be kept. Override compute_loss "
                f"instead, or return a dt.Training(step=...)."
            )


def _refuse_optimizer(optimizer: Any) -> None:
    name, module = type(optimizer).__name__, type(optimizer).__module__
    if module.startswith("schedulefree") or name in ("LayerWiseDummyOptimizer", "Lomo", "AdaLomo"):
        raise ProgramError(
            f"the optimizer must step when the gradients of a whole step are there, and be the same when it evaluates; "
            f"{name} does otherwise. Choose another with TrainingArguments(optim=...)."
        )
