"""An optimizer's steps taken on one long tensor instead of on each parameter: the same numbers for less Python.

What torch's optimizers do to an element of a parameter depends on nothing but that element, its gradient and its state,
so a step on all of them in a row gives every bit of a step on each. Their own code takes it, by an optimizer of the
same class whose only parameter is that row. Parameters and their states become parts of the row, so whoever reads or
saves them finds them where they were. Those of which that is not true (LBFGS, Adafactor, Muon) are left alone.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn, optim
from torch.optim import optimizer as torch_optimizer

_ELEMENTWISE = (
    *(optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adamax, optim.Adagrad, optim.Adadelta),
    *(optim.SGD, optim.RMSprop, optim.Rprop, optim.ASGD),
)
# Each parameter begins where memory of its own would: kernels are chosen by that.
_ALIGNED = 512

State = dict[str, Any]


class FlatOptimizer:
    """Stands in for an optimizer that has taken a step. `of` makes one."""

    def __init__(self, optimizer: optim.Optimizer, rows: "list[_FlatGroup | None]") -> None:
        self._optimizer, self._rows = optimizer, rows
        groups = [{**_options(g), "params": [row.flat]} for g, row in self._pairs()]
        self._own: optim.Optimizer = type(optimizer)(groups)  # type: ignore[call-arg]
        for _, row in self._pairs():
            self._own.state[row.flat] = row.state
        self.pull()

    @staticmethod
    def of(optimizer: Any, parameters: Sequence[nn.Parameter]) -> "FlatOptimizer | None":
        """For these parameters, which are those that have gradients; None where it would not be the same."""
        if type(optimizer) not in _ELEMENTWISE or not parameters or _is_watched(optimizer):
            return None
        wanted = set(parameters)
        chosen = [[each for each in group["params"] if each in wanted] for group in optimizer.param_groups]
        if sum(map(len, chosen)) < len(wanted):  # some are not the optimizer's
            return None
        for group, mine in zip(optimizer.param_groups, chosen, strict=True):
            if isinstance(group["lr"], torch.Tensor) or group.get("capturable") or group.get("differentiable"):
                return None
            if mine and not _are_alike(optimizer, mine):
                return None
        return FlatOptimizer(optimizer, [_FlatGroup(optimizer, mine) if mine else None for mine in chosen])

    def fill(self) -> None:
        """Take the gradients that the parameters have."""
        for _, row in self._pairs():
            torch._foreach_copy_(row.gradients, [each.grad for each in row.parameters if each.grad is not None])

    def fits(self, parameters: Sequence[nn.Parameter]) -> bool:
        """Whether these, which have gradients, are all of its parameters, and are still where it has put them."""
        mine = [each for _, row in self._pairs() for each in row.parameters]
        return {*map(id, parameters)} == {*map(id, mine)} and all(row.is_in_place() for _, row in self._pairs())

    def step(self) -> None:
        """Take a step from the gradients it was filled with."""
        for (group, _), own in zip(self._pairs(), self._own.param_groups, strict=True):
            own.update(_options(group))
        self._own.step()
        self._optimizer._opt_called = True  # type: ignore[attr-defined]  # schedulers ask

    def push(self) -> None:
        """Let the optimizer know what is not part of a row: how many steps it has taken, and the like."""
        for _, row in self._pairs():
            for name, value in self._own.state[row.flat].items():
                if isinstance(value, torch.Tensor):
                    row.push(self._optimizer, name, value)

    def pull(self) -> None:
        """Know what the optimizer has counted by itself."""
        for _, row in self._pairs():
            theirs = self._optimizer.state[row.parameters[0]]
            for name, value in self._own.state[row.flat].items():
                if isinstance(value, torch.Tensor) and not value.dim():
                    value.copy_(theirs[name])

    def equals_plain_step(self) -> bool:
        """Take the optimizer's own step, and say whether one of this would have been the same."""
        tensors = [each for _, row in self._pairs() for each in row.tensors(self._own)]
        before = [each.clone() for each in tensors]
        self.step()
        found = [each.clone() for each in tensors]
        for each, value in zip(tensors, before, strict=True):
            each.data.copy_(value)
        self._optimizer.step()
        self.pull()
        return all(torch.equal(each, value) for each, value in zip(tensors, found, strict=True))

    def _pairs(self) -> "list[tuple[dict[str, Any], _FlatGroup]]":
        pairs = zip(self._optimizer.param_groups, self._rows, strict=True)
        return [(group, row) for group, row in pairs if row is not None]


class FlatSteps:
    """An optimizer's steps: in a row, once one of those was found to be the same to the bit as the optimizer's own."""

    def __init__(self, optimizer: optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._flat: FlatOptimizer | None = None
        self._is_proven = self._differs = False
        self.layouts = 0
        """How often parameters were put in a row, or left one: where gradients were filled in is elsewhere then."""

    def lay_out(self, parameters: Sequence[nn.Parameter]) -> None:
        """Put these, which have had gradients, in a row where that may be; they are elsewhere in memory then."""
        if self._flat is None and not self._differs:
            self._flat = FlatOptimizer.of(self._optimizer, parameters)
            self.layouts += self._flat is not None

    def fill(self, parameters: Sequence[nn.Parameter]) -> None:
        """Take the gradients of these, which are all that have some."""
        if self._flat is not None and self._flat.fits(parameters):
            self._flat.fill()

    def step(self, parameters: Sequence[nn.Parameter], *, is_filled: bool) -> None:
        """Take a step of these, which are all that have gradients; `is_filled`: which `fill` was called with."""
        if self._flat is not None and not self._flat.fits(parameters):
            self.forget()  # from here on some are ahead of others
        if self._flat is None:
            self._optimizer.step()
            return
        if not is_filled:
            self._flat.fill()
        if self._is_proven:
            self._flat.step()
        elif self._flat.equals_plain_step():
            self._is_proven = True
        else:
            self._flat, self._differs = None, True
            self.layouts += 1

    def settle(self) -> None:
        """Let the optimizer's state be as after its last step."""
        if self._flat is not None:
            self._flat.push()

    def forget(self) -> None:
        """Go on plainly, until parameters are put in a row again."""
        self.settle()
        self.layouts += self._flat is not None
        self._flat, self._is_proven = None, False


class _FlatGroup:
    """Parameters of a group one after another, with their gradients and states."""

    def __init__(self, optimizer: optim.Optimizer, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        step = max(1, _ALIGNED // parameters[0].element_size())
        self._places, size = [], 0
        for parameter in parameters:
            self._places.append(size)
            size += -(-parameter.numel() // step) * step
        like = parameters[0].data
        self._zeros = lambda: torch.zeros(size, dtype=like.dtype, device=like.device)
        flat, parts = self._row([parameter.data for parameter in parameters])
        self.flat = nn.Parameter(flat)
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.data = part
        self._pointers = [part.data_ptr() for part in parts]
        self.flat.grad, self.gradients = self._row([])
        self.state = self._states([optimizer.state[parameter] for parameter in parameters])

    def is_in_place(self) -> bool:
        """Whether nobody has moved the parameters, as `model.cpu()` does."""
        return [parameter.data_ptr() for parameter in self.parameters] == self._pointers

    def tensors(self, own: optim.Optimizer) -> list[torch.Tensor]:
        """All tensors that a step of this group changes: the parameters and the optimizer's moments."""
        return [self.flat, *(each for each in own.state[self.flat].values() if isinstance(each, torch.Tensor))]

    def push(self, optimizer: optim.Optimizer, name: str, value: torch.Tensor) -> None:
        """Let the optimizer have what a state of the row has that is no part of its own."""
        for parameter, part in zip(self.parameters, self._parts(value) if value.dim() else [], strict=False):
            if optimizer.state[parameter].get(name) is None:  # made since, as by a momentum that was 0 before
                optimizer.state[parameter][name] = part
        if not value.dim():
            for parameter in self.parameters:
                optimizer.state[parameter][name].copy_(value)

    def _states(self, states: list[State]) -> State:
        found: State = {}
        for name, value in states[0].items():
            if isinstance(value, torch.Tensor) and value.dim():
                found[name], parts = self._row([state[name] for state in states])
                for state, part in zip(states, parts, strict=True):
                    state[name] = part
            else:
                found[name] = value.clone() if isinstance(value, torch.Tensor) else value
        return found

    def _row(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """A row with these in it, and the parts that belong to each parameter."""
        row = self._zeros()
        parts = self._parts(row)
        if tensors:
            torch._foreach_copy_(parts, list(tensors))
        return row, parts

    def _parts(self, row: torch.Tensor) -> list[torch.Tensor]:
        places = zip(self._places, self.parameters, strict=True)
        return [row[place : place + each.numel()].view(each.shape) for place, each in places]


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _is_watched(optimizer: optim.Optimizer) -> bool:
    """Whether somebody wants to know of each step."""
    own = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    return bool(own or torch_optimizer._global_optimizer_pre_hooks or torch_optimizer._global_optimizer_post_hooks)


def _are_alike(optimizer: optim.Optimizer, parameters: Sequence[nn.Parameter]) -> bool:
    """Whether parameters and their states can be put in a row: each of one type, dense, and as far on as the others."""
    first, states = parameters[0], [optimizer.state.get(parameter, {}) for parameter in parameters]
    if _overlap(parameters):
        return False
    for parameter, state in zip(parameters, states, strict=True):
        if parameter.dtype != first.dtype or parameter.device != first.device or not _is_row_major(parameter):
            return False
        if state.keys() != states[0].keys() or not all(_is_alike(state[k], states[0][k], parameter) for k in state):
            return False
    return True


def _is_row_major(parameter: nn.Parameter) -> bool:
    """Whether its elements lie as they would in a row, and there is an order of them at all."""
    return bool(parameter.dim()) and parameter.stride() == torch.empty(parameter.shape, device="meta").stride()


def _overlap(parameters: Sequence[nn.Parameter]) -> bool:
    """Whether two share memory, as those do that are tied through `.data`."""
    places = sorted((each.data_ptr(), each.data_ptr() + each.nbytes) for each in parameters)
    return any(before[1] > after[0] for before, after in itertools.pairwise(places))


def _is_alike(value: Any, first: Any, parameter: nn.Parameter) -> bool:
    if not isinstance(value, torch.Tensor):
        return bool(value == first)
    if not value.dim():
        return bool(torch.equal(value, first))
    same = value.shape == parameter.shape and value.dtype == parameter.dtype and value.device == parameter.device
    return same and value.is_contiguous()
