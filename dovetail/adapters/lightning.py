"""A Lightning module, its data and its trainer's flags as a `Training`.

The module is asked for its optimizers and its steps in the order in which `Trainer.fit` asks; the `Trainer` itself
never runs. Both packages, `lightning` and `pytorch_lightning`, will do: whichever the module comes from.
"""

import importlib
import inspect
import logging
import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from dovetail.adapters.drawn_order import keep_order
from dovetail.adapters.extras import require
from dovetail.adapters.lightning_callbacks import keep_callbacks, overrides, refuse_hooks, steps_itself
from dovetail.adapters.lightning_schedulers import convert_schedulers
from dovetail.adapters.lightning_step import LightningEvaluation, LightningLoss, LightningStep, StepCall
from dovetail.adapters.lightning_view import (
    OptimizerSteps,
    TrainerView,
    ViewedStrategy,
    attached,
    clip_as,
    is_lightning,
    lightning_modules,
    limit_of,
)
from dovetail.adapters.step_batches import BatchPlace, StepBatches, weight_of
from dovetail.adapters.step_code import classes_above, is_own, loads_argument, names_read
from dovetail.train import Training
from dovetail.train.fuse.fusibility import UNREAD
from dovetail.vocabulary import ProgramError

LEAST_VERSION = "2.4"
PACKAGES = ("lightning.pytorch", "pytorch_lightning")
# Methods of a module that are not part of its training step.
_BESIDES = (
    *("__init__", "configure_optimizers", "configure_callbacks", "configure_model", "prepare_data", "setup"),
    *("train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader", "teardown"),
    *("validation_step", "test_step", "predict_step", "on_fit_start", "on_train_start", "on_train_end"),
    *(f"on_validation_{part}" for part in ("start", "end", "epoch_start", "epoch_end")),
)
_BATCH_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
_PRECISIONS = {"32-true": "fp32", "32": "fp32", "16-mixed": "fp16", "bf16-mixed": "bf16"}


def from_lightning(module: Any, data: Any = None, *, trainer: Any = None) -> Training:
    """A `LightningModule` as a `dt.Training`, to be planned, fused and resumed like any other.

    - `data` is a loader, a pair of loaders for training and validation (or a list of them), or a
      `LightningDataModule`; None takes the module's own `train_dataloader` and `val_dataloader`.
    - `trainer` is a `lightning.Trainer` whose flags are read: accumulation, clipping, precision, limits, how often to
      validate, callbacks. It never runs. How long to train, and on which devices, is not its business: give the task
      `steps` or `epochs`. Its `max_epochs` and `max_steps` are read by schedules that ask how long training will be.
    - What `training_step` logs is recorded as `train/...` step by step; what `validation_step` logs, as it is named.
    - Batches come in the order in which `trainer.fit` would take them if it began now. Random numbers inside a step
      are keyed as in any training (tutorial, 6), so dropout falls otherwise than under `fit`.
    - Manual optimization, and hooks in the step, become a step of their own, which technique `resident` takes.

    >>> import lightning, torch
    >>> class Regression(lightning.LightningModule):
    ...     def __init__(self, learning_rate=0.1):
    ...         super().__init__()
    ...         self.layer, self.learning_rate = torch.nn.Linear(2, 1), learning_rate
    ...     def training_step(self, batch, batch_idx):
    ...         loss = self.layer(batch).square().mean()
    ...         self.log("squares", loss)
    ...         return loss
    ...     def configure_optimizers(self):
    ...         return torch.optim.SGD(self.parameters(), lr=self.learning_rate)
    >>> loader = torch.utils.data.DataLoader(torch.randn(8, 2), batch_size=4)
    >>> training = from_lightning(Regression(), loader)
    >>> training.steps_per_epoch(), training.optimizer.param_groups[0]["lr"]
    (2, 0.1)
    """
    return _Conversion(module, data, trainer).convert()


class _Conversion:
    """One module on its way to a `Training`."""

    def __init__(self, module: Any, data: Any, trainer: Any) -> None:
        self._package = _package_of(module)
        self._base = self._part("core.module").LightningModule
        self._module, self._data = module, data
        self._trainer = trainer if trainer is not None else _quiet_trainer(self._part("trainer").Trainer)
        _refuse_flags(self._trainer)
        refuse_hooks(module, self._base)
        own = module.configure_callbacks()
        callbacks = [*self._trainer.callbacks, *(own if isinstance(own, Sequence) else [own])]
        self._kept = keep_callbacks(callbacks, package=self._part("callbacks"))
        self._optimizer_steps = OptimizerSteps()
        self._view = TrainerView(self._trainer, logger=self._part("loggers.logger").DummyLogger())
        self._view.strategy = ViewedStrategy(module, clip=clip_as(self._trainer, module), steps=self._optimizer_steps)
        self._names = names_read(_step_classes(module, self._base), besides=_BESIDES)

    def convert(self) -> Training:
        """Set everything up in the order of `Trainer.fit`."""
        with attached(self._module, self._view):
            self._set_up()
            train, validations = self._loaders()
            limit = limit_of(train, self._trainer.limit_train_batches)
            self._view.num_training_batches = _count(train, limit)
            optimizers, configs = self._optimizers()
            self._hook("on_fit_start")
            self._hook("on_train_start")
        self._view.paths = tuple(path for path, each in self._module.named_modules() if is_lightning(each))
        _mark_unread(lightning_modules(self._module, self._view), self._names)
        loader = keep_order(train, limit=limit, validations=lambda epoch: self._validation_loaders(epoch, validations))
        evaluate = self._evaluation(validations)
        self._warn_of_silence(evaluates=evaluate is not None)
        schedules = convert_schedulers(
            configs if self._module.automatic_optimization else (),
            batches=_finite_count(self._view.num_training_batches),
            accumulate=self._accumulate,
            epochs_per_evaluation=self._trainer.check_val_every_n_epoch if self._validates_at_ends else None,
        )
        own_schedules = {} if schedules else {f"scheduler_{n}": each.scheduler for n, each in enumerate(configs)}
        monitored = self._kept.keep_best if evaluate is not None else None
        return Training(
            model=self._module,
            optimizer=optimizers[0] if len(optimizers) == 1 else {str(n): each for n, each in enumerate(optimizers)},
            schedules=schedules or own_schedules,
            evaluate=evaluate,
            evaluate_every=self._evaluate_every(),
            keep_best=monitored,
            goal=self._kept.goal if monitored else None,
            accumulate=self._accumulate,
            precision=_PRECISIONS[str(self._trainer.precision)],
            log_every=max(1, min(10, self._trainer.log_every_n_steps)),
            **(self._whole_step(loader) if self._takes_whole_steps(optimizers) else self._plain_loss(loader)),
        )

    @property
    def _accumulate(self) -> int:
        return int(self._trainer.accumulate_grad_batches) if self._module.automatic_optimization else 1

    def _part(self, name: str) -> Any:
        return importlib.import_module(f"{self._package}.{name}")

    # What the module and its data are asked for

    def _set_up(self) -> None:
        module, data, view = self._module, self._data, self._view
        if isinstance(data, self._part("core.datamodule").LightningDataModule):
            view.datamodule, data.trainer = data, view
            data.prepare_data()
        module.prepare_data()
        if view.datamodule is not None:
            data.setup("fit")
        for callback in self._kept.called:
            callback.setup(view, module, "fit")
        module.setup("fit")
        module.configure_model()

    def _loaders(self) -> tuple[Any, list[Any]]:
        """The training's loader, and the validation's."""
        source = self._module if self._data is None else self._view.datamodule
        if source is not None:
            hooks = self._part("core.hooks").DataHooks
            train = source.train_dataloader()
            found = source.val_dataloader() if overrides(source, "val_dataloader", hooks) else None
        elif isinstance(self._data, tuple) and len(self._data) == 2:
            train, found = self._data
        else:
            train, found = self._data, None
        if isinstance(train, Mapping) or (
            isinstance(train, list | tuple) and train and isinstance(train[0], DataLoader)
        ):
            raise ProgramError(
                "the training data must be one loader; several were given. Join their datasets "
                "(torch.utils.data.ConcatDataset), or give pairs of items."
            )
        if not hasattr(train, "__iter__"):
            raise ProgramError(
                f"the data must be a DataLoader, a pair (training, validation) or a LightningDataModule; got "
                f"{type(train).__name__}."
            )
        found = list(found.values()) if isinstance(found, Mapping) else found
        several = isinstance(found, list | tuple) and all(isinstance(each, DataLoader) for each in found)
        return train, [] if found is None else list(found) if several else [found]

    def _optimizers(self) -> tuple[list[Any], list[Any]]:
        """What `configure_optimizers` gives in whichever of its forms, read by Lightning's own code."""
        module, view, part = self._module, self._view, self._part("core.optimizer")
        given = module.configure_optimizers()
        if given is None:
            raise ProgramError(
                f"{type(module).__name__}.configure_optimizers must return an optimizer; it returned None. There is "
                f"nothing to train without one."
            )
        optimizers, schedulers, monitor = part._configure_optimizers(given)
        optimizers = [getattr(each, "_optimizer", each) for each in optimizers]
        if module.automatic_optimization and len(optimizers) > 1:
            raise ProgramError(
                f"a module of automatic optimization must have one optimizer; {type(module).__name__} has "
                f"{len(optimizers)}. Set self.automatic_optimization = False, and step them in training_step."
            )
        if module.automatic_optimization:
            configs = part._configure_schedulers_automatic_opt(schedulers, monitor)
        else:
            configs = part._configure_schedulers_manual_opt(schedulers)
        view.optimizers, view.lr_scheduler_configs = optimizers, configs
        assert view.strategy is not None
        wrap = part.LightningOptimizer._to_lightning_optimizer
        view.strategy._lightning_optimizers = [wrap(each, view.strategy) for each in optimizers]
        return optimizers, configs

    def _hook(self, name: str) -> None:
        for callback in self._kept.called:
            getattr(callback, name)(self._view, self._module)
        getattr(self._module, name)()

    # How a step is taken

    def _takes_whole_steps(self, optimizers: Sequence[Any]) -> bool:
        """Whether the step must be Lightning's own, as one function."""
        module, trainer = self._module, self._trainer
        if not module.automatic_optimization or self._kept.at_steps or steps_itself(module, self._base):
            return True
        closure = inspect.signature(type(optimizers[0]).step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            return True
        # Lightning clips by value, too, and of the norm only what the optimizer has.
        stepped = {parameter for group in optimizers[0].param_groups for parameter in group["params"]}
        strays = any(each.requires_grad and each not in stepped for each in module.parameters())
        return bool(trainer.gradient_clip_val) and (str(_algorithm(trainer)) == "value" or strays)

    def _call(self) -> StepCall:
        step = self._module.training_step
        takes = self._part("utilities.signature_utils").is_param_in_hook_signature
        hooks = self._part("core.hooks").DataHooks
        owner = self._view.datamodule
        if owner is not None and any(overrides(owner, each, hooks) for each in _BATCH_HOOKS):
            raise ProgramError(
                f"batches must be changed by the module, which travels with its training; {type(owner).__name__} has "
                f"hooks that change them. Put {', '.join(_BATCH_HOOKS)} into the LightningModule."
            )
        if takes(step, "dataloader_iter", explicit=True):
            raise ProgramError("training_step must take a batch; one that takes dataloader_iter reads by itself.")
        changed = tuple(each for each in _BATCH_HOOKS if overrides(self._module, each, hooks))
        return StepCall(takes_number=takes(step, "batch_idx", min_args=2), batch_hooks=changed)

    def _plain_loss(self, loader: Any) -> dict[str, Any]:
        call, accumulate = self._call(), self._accumulate
        is_read = self._names is None or bool(self._names & {"trainer", "current_epoch", "global_step"})
        is_read = is_read or (call.takes_number and loads_argument(type(self._module).training_step, 2))
        count = _finite_count(self._view.num_training_batches)
        is_ragged = count is not None and count % accumulate > 0
        if count is not None and is_ragged:
            _refuse_running_statistics(self._module, count, accumulate)

        def extras(batches: Sequence[Any], place: BatchPlace) -> dict[str, Any]:
            numbers = {"batch_idx": place.batch_idx, "epoch": place.epoch, "step": place.step} if is_read else {}
            # What is left over at an epoch's end is a step of its own, divided by `accumulate` all the same.
            return numbers | ({"weight": weight_of(place, 1.0)} if is_ragged else {})

        is_placed = is_read or is_ragged
        batches = StepBatches(loader, accumulate=accumulate, extras=extras) if is_placed else loader
        clip = self._trainer.gradient_clip_val
        return {
            "batches": batches,
            "loss": LightningLoss(self._view, call, is_placed=is_placed),
            "clip_norm": float(clip) if clip else None,
        }

    def _whole_step(self, loader: Any) -> dict[str, Any]:
        def extras(batches: Sequence[Any], place: BatchPlace) -> dict[str, Any]:
            return {"batch_idx": place.batch_idx, "epoch": place.epoch, "step": place.step, "counts": place.counts}

        step = LightningStep(
            self._view,
            self._call(),
            callbacks=self._kept.called,
            accumulate=self._accumulate,
            steps=self._optimizer_steps,
        )
        stateful = {
            f"callback {number} {type(each).__name__}": each
            for number, each in enumerate(self._kept.called)
            if overrides(each, "state_dict", self._part("callbacks").Callback)
        }
        return {
            "batches": StepBatches(loader, accumulate=self._accumulate, extras=extras),
            "step": step,
            "state": {"optimizer steps": self._optimizer_steps, **stateful},
        }

    # How it is evaluated

    def _evaluation(self, validations: Sequence[Any]) -> LightningEvaluation | None:
        if not validations or not overrides(self._module, "validation_step", self._base):
            return None
        if not self._trainer.limit_val_batches:
            return None
        results = self._part("trainer.connectors.logger_connector.result")._ResultCollection
        return LightningEvaluation(
            self._view,
            validations,
            limit=self._trainer.limit_val_batches,
            callbacks=self._kept.called,
            results=lambda: results(training=False),
        )

    @property
    def _validates_at_ends(self) -> bool:
        every = self._trainer.check_val_every_n_epoch
        return every is not None and self._trainer.val_check_interval in (None, 1.0)

    def _batches_per_validation(self) -> int | None:
        """After how many batches Lightning validates; None where it does so at epochs' ends."""
        interval, count = self._trainer.val_check_interval, self._view.num_training_batches
        if self._validates_at_ends or interval is None:
            return None
        if isinstance(interval, int) and not isinstance(interval, bool):
            return interval
        return max(1, int(count * interval)) if not math.isinf(count) else None

    def _evaluate_every(self) -> int | None:
        """After how many optimizer steps to evaluate; None where Lightning validates at each epoch's end."""
        batches, every = self._batches_per_validation(), self._trainer.check_val_every_n_epoch
        if batches is not None:
            return max(1, batches // self._accumulate)
        if every in (None, 1) or math.isinf(self._view.num_training_batches):
            return None
        return int(every) * math.ceil(self._view.num_training_batches / self._accumulate)

    def _validation_loaders(self, epoch: int, validations: Sequence[Any]) -> list[Any]:
        """The loaders that Lightning goes through in an epoch's validations, one after another."""
        every, batches = self._trainer.check_val_every_n_epoch, self._batches_per_validation()
        if not overrides(self._module, "validation_step", self._base) or not self._trainer.limit_val_batches:
            return []
        if batches is None or math.isinf(self._view.num_training_batches):
            return list(validations) if (epoch + 1) % (every or 1) == 0 else []
        count = int(self._view.num_training_batches)
        if every is None:  # counted through all epochs
            times = (epoch + 1) * count // batches - epoch * count // batches
        else:
            times = count // batches if (epoch + 1) % every == 0 else 0
        return list(validations) * times

    def _warn_of_silence(self, *, evaluates: bool) -> None:
        if not evaluates and self._names is not None and not self._names & {"log", "log_dict"}:
            warnings.warn(
                f"{type(self._module).__name__} logs nothing, so of its training only the loss is recorded. "
                f"self.log(name, value) in training_step or validation_step adds metrics.",
                stacklevel=4,
            )


def _package_of(module: Any) -> str:
    """Which of the two packages a module's class comes from, of a version that will do."""
    names = {base.__module__ for base in type(module).__mro__}
    for package in PACKAGES:
        if f"{package}.core.module" in names:
            require(package.partition(".")[0], extra="lightning", least=LEAST_VERSION)
            return package
    if not any(package.partition(".")[0] in sys.modules for package in PACKAGES):
        require("lightning", extra="lightning", least=LEAST_VERSION)
    raise ProgramError(
        f"dt.from_lightning must be given a LightningModule, got {type(module).__name__}. A plain model goes into "
        f"dt.Training(model=..., batches=..., loss=..., optimizer=...)."
    )


def _quiet_trainer(kind: Any) -> Any:
    """A trainer of default flags that neither writes files nor says what it found on this machine."""
    said = logging.getLogger(f"{kind.__module__.rpartition('.trainer.')[0]}.utilities.rank_zero")
    level = said.level
    said.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return kind(
                accelerator="cpu",
                devices=1,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
    finally:
        said.setLevel(level)


def _refuse_flags(trainer: Any) -> None:
    """Raise `ProgramError` for flags of a trainer that a training cannot keep."""
    refused = {
        "overfit_batches": (bool(trainer.overfit_batches), "give a smaller dataset"),
        "fast_dev_run": (bool(trainer.fast_dev_run), "give the task steps=1"),
        "reload_dataloaders_every_n_epochs": (
            bool(trainer.reload_dataloaders_every_n_epochs),
            "let one loader give each epoch's data",
        ),
        "val_check_interval": (
            not isinstance(trainer.val_check_interval, int | float | type(None)),
            "count batches or epochs: what is evaluated by the clock does not repeat itself",
        ),
        "precision": (
            str(trainer.precision) not in _PRECISIONS,
            f"use one of {sorted(set(_PRECISIONS) - {'32'})}; for weights in bf16, set training.precision = "
            f"'bf16-pure' on what dt.from_lightning gives",
        ),
    }
    for flag, (is_set, advice) in refused.items():
        if is_set:
            raise ProgramError(f"Trainer({flag}={getattr(trainer, flag)!r}) cannot be kept; {advice}.")


def _refuse_running_statistics(module: nn.Module, count: int, accumulate: int) -> None:
    """An epoch's last step is filled up with a batch that weighs nothing, which running statistics would see."""
    for name, each in module.named_modules():
        if getattr(each, "running_mean", None) is not None:
            raise ProgramError(
                f"with running statistics (here in {name!r}) an epoch's batches must be whole steps; there are "
                f"{count} batches, and a step takes {accumulate}. Give Trainer(limit_train_batches="
                f"{count - count % accumulate})."
            )


def _step_classes(module: nn.Module, base: type) -> list[type]:
    """The classes whose methods may read the module's attributes in a training step: those of the Lightning modules,
    and the user's own of modules inside them. Those of installed packages do not know what they are part of."""
    found: dict[type, None] = {}
    for each in module.modules():
        if isinstance(each, base):
            found |= dict.fromkeys(classes_above(each, base))
        else:
            found |= dict.fromkeys(filter(is_own, classes_above(each, nn.Module)))
    return list(found)


def _mark_unread(modules: Sequence[nn.Module], names: frozenset[str] | None) -> None:
    """Name the plain attributes that no training step reads, so that tasks may differ in them and be fused."""
    if names is None:
        return
    for each in modules:
        unread = {name for name in vars(each) if not name.startswith("_") and name not in names and name != "training"}
        if "hparams" not in names:
            unread |= {name for name in vars(each) if name.startswith("_hparams")}
        vars(each)[UNREAD] = frozenset(unread)


def _count(loader: Any, limit: int | None) -> float:
    try:
        count = len(loader)
    except TypeError:
        return math.inf
    return count if limit is None else min(count, limit)


def _finite_count(count: float) -> int | None:
    return None if math.isinf(count) else int(count)


def _algorithm(trainer: Any) -> str:
    found = trainer.gradient_clip_algorithm
    return str(getattr(found, "value", found) or "norm")
