"""What spill cannot train exactly, and why."""

import copy
from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import nn

from dovetail.train.base import Training
from dovetail.train.compiled_programs import refuse_compiled_draws, runs_compiled
from dovetail.train.numeric.coded_optimizers import LEAST_NUMBERS, CodedSteps, is_coded
from dovetail.train.undeclared import refuse_declared, refuse_scaling
from dovetail.train.weights import find_hooked

_PROBE = 64


def refusal(training: Training, *, name: str = "spill") -> str | None:
    """Why this training cannot be spilled, or None where it can; `name` is who asks.

    >>> model = nn.Linear(2, 1)
    >>> refusal(Training(model=model, batches=[], step=lambda model, batch: {},
    ...                  optimizer=torch.optim.SGD(model.parameters()))).partition(";")[0]
    'spill must take the step itself'
    """
    if training.step is not None:
        return "spill must take the step itself; the training has a step function of its own"
    if reason := refuse_declared(training, name=name) or refuse_scaling(training, name=name):
        return reason
    if any(nn.parameter.is_lazy(parameter) for parameter in training.model.parameters()):
        return "parameters must have their shapes before training; some are lazy. Run one batch through the model first"
    for what, function in (("the loss", training.loss), ("evaluate", training.evaluate)):
        if runs_compiled(function):
            return (
                f"{what} must run as Python, for weights come and go as it calls modules; it is compiled, or what it "
                f"calls is"
            )
    if reason := refuse_compiled_draws(training.model, training.loss, name=name):
        return reason
    for path, module in training.model.named_modules():
        if module._forward_pre_hooks and any(True for _ in module.parameters()):
            return f"weights must be read by forward; {path or 'the model'!r} has hooks that run before it is there"
        if getattr(module, "max_norm", None) is not None:
            return f"forward must leave weights as they are; {path!r} changes its own (max_norm)"
        if isinstance(module, torch.jit.ScriptModule) or hasattr(module, "_orig_mod"):
            return f"modules must run as Python; {path or 'the model'!r} is scripted or compiled"
    if (parameter := find_hooked(training.model)) is not None:
        return f"gradients must be seen by the optimizer alone; parameter {parameter!r} has hooks"
    assert isinstance(training.optimizer, torch.optim.Optimizer)
    if training.optimizer._optimizer_step_pre_hooks or training.optimizer._optimizer_step_post_hooks:
        return "an optimizer that is stepped in parts must have no hooks around its steps; this one has"
    return _separable(training.optimizer)


def _separable(optimizer: torch.optim.Optimizer) -> str | None:
    """Whether two parameters stepped together come out as when each is stepped alone, bit by bit."""
    wanted = "the optimizer must update each parameter from that parameter's gradient alone"
    try:
        together = _probe(optimizer, (0, 1))
        apart = _probe(optimizer, (0,)) + _probe(optimizer, (1,))
    except Exception as error:
        return f"{wanted}; a trial step of {type(optimizer).__name__} raised {type(error).__name__}: {error}"
    if not all(torch.equal(one, other) for one, other in zip(together, apart, strict=True)):
        return f"{wanted}; {type(optimizer).__name__} steps two together otherwise than one by one"
    return None


def _probe(optimizer: torch.optim.Optimizer, chosen: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(4, _PROBE // 4, generator=generator) for _ in range(2)]
    gradients = [[torch.randn(4, _PROBE // 4, generator=generator) for _ in range(2)] for _ in range(3)]
    parameters = [nn.Parameter(values[number].clone()) for number in chosen]
    trial = _make_trial_optimizer(optimizer, parameters)
    before = _other_state(trial)
    for row in gradients:
        for parameter, number in zip(parameters, chosen, strict=True):
            parameter.grad = row[number].clone()
        trial.step()
    if _other_state(trial) != before:
        raise ValueError("it keeps counts of its own beside the state of parameters")
    return [parameter.detach() for parameter in parameters]


def _other_state(optimizer: torch.optim.Optimizer) -> str:
    """What an optimizer holds beside its parameters and their state."""
    groups = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    own = {n: v for n, v in vars(optimizer).items() if isinstance(v, int | float | torch.Tensor) and n != "_opt_called"}
    return repr((groups, own))


def _make_trial_optimizer(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    trial = copy.copy(optimizer)
    trial.__dict__.pop("step", None)  # a schedule's wrapper steps the optimizer it was made for
    trial.param_groups = [{**optimizer.param_groups[0], "params": parameters}]
    trial.state = defaultdict(dict)
    return trial


def slot_bytes_each(optimizer: torch.optim.Optimizer, *, of: int = LEAST_NUMBERS) -> float:
    """Bytes of slots for each number of a parameter `of` so many, found by one step of one.

    >>> slot_bytes_each(torch.optim.AdamW([torch.zeros(1)])), slot_bytes_each(torch.optim.SGD([torch.zeros(1)], lr=1.0))
    (8.0, 0.0)
    """
    parameter = nn.Parameter(torch.zeros(4, of // 4))
    parameter.grad = torch.ones_like(parameter)
    trial = _make_trial_optimizer(optimizer, [parameter])
    trial.step()
    slots = trial.state[parameter].values()
    return sum(slot.nbytes for slot in slots if isinstance(slot, torch.Tensor) and slot.dim()) / of


def slot_bytes_of(optimizer: torch.optim.Optimizer, parameters: Iterable[torch.Tensor]) -> float:
    """Bytes of slots for each number of these parameters, in the mean: some of them may be kept in fewer bits."""
    coded, plain = slot_bytes_each(optimizer), slot_bytes_each(optimizer, of=_PROBE)
    if isinstance(optimizer, CodedSteps) and any(slots.get("bits") == 16 for slots in optimizer.state.values()):
        return 2.0 * len(optimizer.moments)
    sizes = {True: 0, False: 0}
    for parameter in parameters:
        sizes[is_coded(optimizer.state.get(parameter, {}), parameter)] += parameter.numel()
    return (sizes[True] * coded + sizes[False] * plain) / max(1, sum(sizes.values()))
