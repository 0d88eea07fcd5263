"""What spill cannot train exactly is refused before anything moves, with the reason."""

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from dovetail.testing import programs
from dovetail.train import SHARD, SPILL, SessionMember, Training
from dovetail.train.spill.refusals import slot_bytes_each
from dovetail.vocabulary import ProgramError, TechniqueRefused
from tests.train import ranked
from tests.train.spill.towers import CPU, Tower, adamw, momentum, training


def reason(made: Training) -> str | None:
    """Opening says the same as asking."""
    member = SessionMember(training=made)
    found = SPILL.refuse([member])
    if found is None:
        SPILL.open([member], device=CPU, threads=1).close()
    else:
        with pytest.raises(TechniqueRefused, match=r".") as error:
            SPILL.open([member], device=CPU, threads=1)
        assert str(error.value) == found
    return found


class Normalising(torch.optim.Optimizer):
    """Divides by the norm of all gradients, so no parameter can be stepped alone."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        found = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        total = torch.stack([p.grad.norm() for p in found]).norm()
        for parameter in found:
            parameter.sub_(0.1 * parameter.grad / total)


class Counting(torch.optim.Optimizer):
    """Divides by how many steps it has taken, which it keeps in its groups and not with each parameter."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(group["lr"] / group["step"] * parameter.grad)


class Remembering(Counting):
    """Keeps the count in itself."""

    steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.steps += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(group["lr"] / self.steps * parameter.grad)


def test_an_optimizer_that_wants_the_loss_again_is_refused() -> None:
    with pytest.raises(ProgramError, match=r"must step without a closure .*; LBFGS needs one"):
        training(Tower(), optimizer=torch.optim.LBFGS)


def test_an_optimizer_that_looks_at_all_gradients_is_refused() -> None:
    found = reason(training(Tower(), optimizer=Normalising))
    assert found is not None
    assert "Normalising steps two together otherwise than one by one" in found


@pytest.mark.parametrize("kind", [Counting, Remembering])
def test_an_optimizer_that_counts_steps_for_all_parameters_is_refused(kind: Any) -> None:
    found = reason(training(Tower(), optimizer=kind))
    assert found is not None
    assert kind.__name__ in found


def test_hooks_of_an_optimizer_are_called_once_a_step_or_refused() -> None:
    calls: list[Any] = []
    made = training(Tower())
    assert isinstance(made.optimizer, torch.optim.Optimizer)
    made.optimizer.register_step_post_hook(lambda *_: calls.append(1))
    if reason(made) is None:
        session = SPILL.open([SessionMember(training=made)], device=CPU, threads=1)
        calls.clear()
        session.advance()
        session.drain()
        session.close()
        assert len(calls) == 1


@pytest.mark.parametrize(
    "optimizer",
    [
        adamw,
        momentum,
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.Adafactor(p),
        lambda p: torch.optim.AdamW(p, amsgrad=True, maximize=True),
        lambda p: torch.optim.AdamW(p, foreach=True),
        lambda p: torch.optim.AdamW(p, fused=True),
    ],
    ids=["adamw", "momentum", "sgd", "adafactor", "amsgrad", "foreach", "fused"],
)
def test_elementwise_optimizers_are_accepted(optimizer: Any) -> None:
    assert reason(training(Tower(), optimizer=optimizer)) is None


def test_asking_changes_nothing() -> None:
    made = training(Tower(), optimizer=momentum)
    assert isinstance(made.optimizer, torch.optim.Optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(made.optimizer, 1)
    before = copy.deepcopy((made.optimizer.state_dict(), made.model.state_dict(), schedule.state_dict()))
    random = torch.get_rng_state()
    assert SPILL.refuse([SessionMember(training=made)]) is None
    after = (made.optimizer.state_dict(), made.model.state_dict(), schedule.state_dict())
    assert str(before) == str(after)
    assert torch.equal(random, torch.get_rng_state())


def test_a_step_of_the_programs_own_is_refused() -> None:
    found = reason(programs.fresh("adversarial").training)
    assert found is not None
    assert "step function of its own" in found


def test_lazy_modules_are_refused() -> None:
    lazy = nn.Sequential(nn.Linear(8, 8), nn.LazyLinear(1))
    made = training(Tower())
    made.model = lazy
    found = reason(made)
    assert found is not None
    assert "lazy" in found


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_scripted_module_is_refused_by_name() -> None:
    model = Tower()
    model.layers[1] = torch.jit.script(nn.Linear(8, 8))
    found = reason(training(model))
    assert found is not None
    assert "'layers.1' is scripted or compiled" in found


class Compiled(nn.Module):
    """As torch.compile leaves a module: the original inside."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._orig_mod = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self._orig_mod(x)
        return found


def test_a_compiled_module_is_refused_by_name() -> None:
    model = Tower()
    model.layers[2] = Compiled(nn.Linear(8, 8))
    found = reason(training(model))
    assert found is not None
    assert "'layers.2' is scripted or compiled" in found
    whole = reason(training(Compiled(Tower())))
    assert whole is not None
    assert "'the model'" in whole


def test_what_draws_is_refused_where_it_is_compiled_in_place_and_so_is_a_compiled_loss() -> None:
    model = Tower()
    model.layers[2].compile(backend="eager")
    assert reason(training(model)) is None
    model.layers.append(nn.Dropout(0.1))
    model.layers[-1].compile(backend="eager")
    assert "what draws (dropout and the like) must run as Python for spill" in str(reason(training(model)))
    whole = training(Tower())
    assert whole.loss is not None
    compiled = dataclasses.replace(whole, loss=torch.compile(whole.loss, backend="eager"))
    assert "the loss must run as Python" in str(reason(compiled))


@pytest.mark.parametrize("size", [0, 2])
def test_gangs_are_refused(size: int) -> None:
    members = [programs.fresh(lambda: training(Tower())) for _ in range(size)]
    assert SPILL.refuse(members) == f"spill trains one task at a time, got {size}"


def test_an_unknown_knob_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ProgramError, match=r"among \[.*'device_bytes'.*'disk_directory'.*\], got \['budget'\]"):
        SPILL.open([programs.fresh("tied")], device=CPU, threads=1, knobs={"budget": 1})


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), 0),
        (momentum, 4),
        (adamw, 8),
        (lambda p: torch.optim.AdamW(p, amsgrad=True), 12),
        (lambda p: torch.optim.Adagrad(p), 4),
    ],
)
def test_the_slots_of_an_optimizer_are_found_by_a_trial_step(optimizer: Any, expected: int) -> None:
    made = optimizer([nn.Parameter(torch.zeros(3))])
    before = str(made.state_dict())
    assert slot_bytes_each(made) == expected
    assert str(made.state_dict()) == before


@pytest.mark.parametrize("technique", [SPILL, SHARD])
def test_hooks_on_parameters_are_refused(technique: Any) -> None:
    reason = technique.refuse([programs.fresh(ranked.hooked)])
    assert reason is not None
    assert "parameter '0.weight' has hooks" in reason
