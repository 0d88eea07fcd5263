"""A step that is replayed is the step that is taken plainly, to the bit; what cannot be replayed is taken plainly."""

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from dovetail.testing import programs
from dovetail.testing.techniques import TechniqueConformance
from dovetail.train import BESIDE, GRAPH, RESIDENT, SessionMember, Technique, Training
from dovetail.train.graph import GraphSession
from dovetail.vocabulary import TechniqueRefused

CUDA = torch.device("cuda", 0)


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


class TestGraph(TechniqueConformance):
    technique = GRAPH


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.usefixtures("deterministic")
class TestGraphOnCuda(TechniqueConformance):
    technique = GRAPH
    device = CUDA

    @pytest.mark.parametrize("program", programs.PLAIN)
    def test_a_plain_loop_gives_the_same(self, program: str) -> None:
        # The plain loop of this law runs on the CPU, whose sums are in another order.
        self.tolerance = 1e-4
        super().test_a_plain_loop_gives_the_same(program)


def trained(model: nn.Module, **fields: Any) -> Training:
    data = torch.randn(40, 8, generator=torch.Generator().manual_seed(1))
    return Training(
        **{
            "model": model,
            "batches": torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=8, shuffle=True),
            "loss": lambda model, batch: model(batch[0]).square().mean(),
            "optimizer": torch.optim.AdamW(model.parameters(), lr=0.01),
            **fields,
        }
    )


def perceptron(**fields: Any) -> Training:
    return trained(nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 4)), **fields)


def wide() -> Training:
    """Its products are large enough to be taken in 8 bits."""
    model = nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024))
    data = torch.randn(64, 1024, generator=torch.Generator().manual_seed(1))
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=16, shuffle=True)
    return trained(model, batches=batches, precision="bf16")


def functional() -> Training:
    """Draws in its loss, where no module does."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.dropout(model(batch[0]) + torch.rand_like(batch[0][:, :4]), 0.5).square().mean()

    return perceptron(loss=loss)


def noised() -> Training:
    """Draws before any module does, as what learns to remove noise."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return (model(batch[0] + torch.randn_like(batch[0])) - batch[0][:, :4]).square().mean()

    return perceptron(loss=loss, accumulate=2)


def normed() -> Training:
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout1d(0.2), nn.Linear(24, 2)]
    return trained(nn.Sequential(nn.Unflatten(1, (1, 8)), nn.Unflatten(2, (4, 2)), nn.Upsample((8, 3)), *layers))


def recurrent() -> Training:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells, self.drop = nn.LSTM(2, 6, batch_first=True), nn.Dropout(0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.drop(self.cells(x.unflatten(1, (4, 2)))[0])

    return trained(Model())


def attention() -> Training:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=2, n_positions=16, vocab_size=64, bos_token_id=0, eos_token_id=0
    )
    rows = torch.randint(64, (24, 16), generator=torch.Generator().manual_seed(1))
    return trained(
        transformers.GPT2LMHeadModel(config),
        batches=[rows[n : n + 8] for n in (0, 8, 16)],
        loss=lambda model, batch: model(input_ids=batch, labels=batch).loss,
        precision="bf16",
    )


def scheduled() -> Training:
    training = perceptron(accumulate=2, clip_norm=0.1)
    assert isinstance(training.optimizer, torch.optim.Optimizer)
    training.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(training.optimizer, 10)
    return training


def uneven() -> Training:
    """Batches of two shapes, and metrics."""

    def loss(model: nn.Module, batch: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
        found = model(batch)
        return found.square().mean(), {"mean": found.mean()}

    return perceptron(batches=[torch.ones(8, 8), torch.randn(8, 8), torch.ones(3, 8)], loss=loss)


class Warmth:
    """A scheduler that is none of torch's."""

    def step(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


# A list at the top level of a file is nobody's state, by what users are told.
KNOB = [1.0]

BUILDS = [perceptron, functional, noised, normed, recurrent, attention, scheduled, uneven]


def member(build: Callable[[], Training], seed: int = 0) -> SessionMember:
    torch.manual_seed(seed)
    return SessionMember(training=build(), seed=seed)


def steps(
    technique: Technique, members: list[SessionMember], count: int = 20, **knobs: Any
) -> tuple[list[list[float]], list[dict[str, torch.Tensor]], str]:
    with contextlib.closing(technique.open(members, device=CUDA, threads=1, knobs=knobs)) as session:
        live = range(len(members))
        losses = [[float(report.loss) for report in session.advance(live)] for _ in range(count)]
        states = [{k: v.detach().clone() for k, v in session.state(number).tensors.items()} for number in live]
        return losses, states, next(filter(None, map(session.shortfall, live)), "")


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.usefixtures("deterministic")
class TestOnCuda:
    @pytest.mark.parametrize("build", BUILDS)
    def test_steps_are_those_of_resident_to_the_bit(self, build: Callable[[], Training]) -> None:
        plain, replayed = (steps(technique, [member(build)]) for technique in (RESIDENT, GRAPH))
        assert replayed[2] == ""
        assert replayed[0] == plain[0]
        assert_same(replayed[1][0], plain[1][0])

    def test_products_in_8_bits_are_replayed_to_the_bit(self) -> None:
        plain, replayed = (steps(each, [member(wide)], approximate="fp8") for each in (RESIDENT, GRAPH))
        assert replayed[2] == ""
        assert replayed[0] == plain[0]
        assert_same(replayed[1][0], plain[1][0])
        assert plain[0] != steps(RESIDENT, [member(wide)])[0]

    def test_tasks_beside_each_other_train_as_each_alone(self) -> None:
        losses, states, shortfall = steps(BESIDE, [member(build, seed) for seed, build in enumerate(BUILDS)])
        assert shortfall == ""
        for seed, build in enumerate(BUILDS):
            alone = steps(RESIDENT, [member(build, seed)])
            assert [row[seed] for row in losses] == [row[0] for row in alone[0]]
            assert_same(states[seed], alone[1][0])

    @pytest.mark.parametrize(
        ("loss", "reason"),
        [
            (lambda model, batch: model(batch[0]).sum() * (1 + random.random()), "drawn on the host"),
            (lambda model, batch: model(batch[0]).sum() * (2 if torch.rand([]) < 0.01 else 1), "drawn on the host"),
            (
                lambda model, batch: model(batch[0]).mean() if batch[0].sum() > 0 else model(batch[0]).sum(),
                "must not wait",
            ),
            (lambda model, batch: (model(batch[0]).mean(), {"rows": 3.0}), "metrics of a step must be tensors"),
            (lambda model, batch: model(batch[0]).mean() * float(batch[0].abs().max()), "test_graph.py"),
        ],
        ids=[
            "Python's own random numbers",
            "a layer that is seldom left out",
            "control flow",
            "a plain metric",
            "a number from the device",
        ],
    )
    def test_what_cannot_be_replayed_is_taken_plainly_without_a_lost_step(self, loss: Any, reason: str) -> None:
        plain = steps(RESIDENT, [member(lambda: perceptron(loss=loss))])
        found = steps(GRAPH, [member(lambda: perceptron(loss=loss))])
        assert reason in found[2]
        assert found[0] == plain[0]
        assert_same(found[1][0], plain[1][0])

    def test_batches_that_are_changed_in_place_are_not_replayed(self) -> None:
        def build() -> Training:
            batches = [torch.ones(8, 8, device=CUDA)]
            return perceptron(batches=batches, loss=lambda model, batch: model(batch.mul_(1.1)).square().mean())

        plain, found = (steps(technique, [member(build)]) for technique in (RESIDENT, GRAPH))
        assert "changes its batches" in found[2]
        assert found[0] == plain[0]

    def test_a_capture_that_fails_is_recovered_from(self) -> None:
        def loss(model: nn.Module, batch: Any) -> torch.Tensor:
            if torch._C._cuda_isCurrentStreamCapturing():
                torch.cuda.synchronize()  # as whoever finds out too late that it may not
            return model(batch[0]).square().mean()

        plain = steps(RESIDENT, [member(lambda: perceptron(loss=loss))])
        found = steps(GRAPH, [member(lambda: perceptron(loss=loss))])
        assert "Error" in found[2]
        assert found[0] == plain[0]
        assert_same(found[1][0], plain[1][0])
        torch.cuda.empty_cache()
        assert steps(GRAPH, [member(perceptron)])[2] == "", "others can be captured afterwards"

    @pytest.mark.parametrize("name", ["running", "calls"])
    def test_modules_that_forward_changes_in_python_are_not_replayed(self, name: str) -> None:
        class Changing(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner, self.calls = nn.Linear(8, 4), 0
                self.register_buffer("running", torch.zeros(4))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                found = self.inner(x)
                if name == "calls":
                    self.calls += 1
                else:  # nothing of the loss depends on it, so that comparing losses and gradients shows nothing
                    self.running = 0.9 * self.running + 0.1 * found.mean(0).detach()
                return found

        plain, found = (steps(technique, [member(lambda: trained(Changing()))]) for technique in (RESIDENT, GRAPH))
        assert f"replaces '{name}'" in found[2]
        assert found[0] == plain[0]
        assert_same(found[1][0], plain[1][0])

    def test_parameters_that_the_loss_changes_are_not_replayed(self) -> None:
        def loss(model: Any, batch: Any) -> torch.Tensor:
            found = model(batch[0]).square().mean()
            model[3].bias.data.mul_(0.5)
            return found

        plain, found = (steps(technique, [member(lambda: perceptron(loss=loss))]) for technique in (RESIDENT, GRAPH))
        assert "leave parameters to the optimizer" in found[2]
        assert found[0] == plain[0]
        assert_same(found[1][0], plain[1][0])

    def test_batches_that_train_different_parts_take_turns(self) -> None:
        class Halves(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.one, self.two = nn.Linear(8, 4), nn.Linear(8, 4)

        def loss(model: Any, batch: Any) -> torch.Tensor:
            name, rows = batch
            return getattr(model, name)(rows).square().mean()

        def build() -> Training:
            torch.manual_seed(3)
            batches = [(name, torch.randn(8, 8)) for name in ("one", "two")]
            return trained(Halves(), batches=batches, loss=loss)

        plain, found = (steps(technique, [member(build)], 40) for technique in (RESIDENT, GRAPH))
        assert found[0] == plain[0]
        assert_same(found[1][0], plain[1][0])

    def test_what_python_changes_late_is_found_late_and_said(self) -> None:
        KNOB[0] = 1.0
        one = member(lambda: perceptron(loss=lambda model, batch: model(batch[0]).square().mean() * KNOB[0]))
        with contextlib.closing(GRAPH.open([one], device=CUDA, threads=1)) as session:
            for step in range(40):
                session.advance()
                if step == 9:
                    KNOB[0] = 2.0
            assert "the last that did not was step" in session.shortfall()

    def test_a_model_that_is_moved_and_back_trains_on(self) -> None:
        def run(technique: Technique) -> dict[str, torch.Tensor]:
            one = member(perceptron)
            with contextlib.closing(technique.open([one], device=CUDA, threads=1)) as session:
                for step in range(16):
                    session.advance()
                    if step == 8:
                        one.training.model.cpu().to(CUDA)
                return {name: value.clone() for name, value in session.state().tensors.items()}

        assert_same(run(GRAPH), run(RESIDENT))

    def test_what_evaluation_changes_in_modules_is_replayed_changed(self) -> None:
        def run(technique: Technique) -> dict[str, torch.Tensor]:
            def evaluate(model: Any) -> dict[str, float]:
                model[1].p = 0.8
                return {}

            one = member(lambda: perceptron(evaluate=evaluate))
            with contextlib.closing(technique.open([one], device=CUDA, threads=1)) as session:
                for step in range(16):
                    session.advance()
                    if step == 8:
                        session.evaluate()
                return {name: value.clone() for name, value in session.state().tensors.items()}

        assert_same(run(GRAPH), run(RESIDENT))

    def test_parameters_that_are_frozen_on_the_way_have_no_gradients_any_more(self) -> None:
        def run(technique: Technique) -> tuple[dict[str, torch.Tensor], int]:
            one = member(perceptron)
            with contextlib.closing(technique.open([one], device=CUDA, threads=1)) as session:
                for step in range(16):
                    session.advance()
                    if step == 7:
                        one.training.model[0].requires_grad_(False)  # type: ignore[index]
                graphs = len(session._captured) if isinstance(session, GraphSession) else 0
                return {name: value.clone() for name, value in session.state().tensors.items()}, graphs

        (plain, _), (found, graphs) = run(RESIDENT), run(GRAPH)
        assert graphs == 1, "one of what is left; the first wrote to where all gradients were in a row"
        assert_same(found, plain)


def test_without_an_accelerator_steps_are_plain_and_say_so() -> None:
    with contextlib.closing(GRAPH.open([member(perceptron)], device=torch.device("cpu"), threads=1)) as session:
        session.advance()
        assert "no CUDA graphs" in session.shortfall()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"callbacks": [lambda training, step: None]}, "callbacks"),
        ({"state": {"average": nn.Linear(8, 1)}}, "state of the user's own"),
        ({"schedules": {"mine": Warmth()}}, "a scheduler of one's own"),
        ({"precision": "fp16"}, "precision must be fp32 or bf16"),
        ({"loss": None, "step": lambda training, batch: {"loss": 0.0}}, "a step function of its own"),
    ],
)
def test_what_a_graph_would_leave_out_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(TechniqueRefused, match=reason):
        GRAPH.open([member(lambda: perceptron(**fields))], device=torch.device("cpu"), threads=1)


def test_hooks_and_gangs_are_refused() -> None:
    hooked = member(perceptron)
    hooked.training.model.register_forward_hook(lambda *_: None)
    assert "hooks of modules" in str(GRAPH.refuse([hooked]))
    assert "one task at a time" in str(GRAPH.refuse([member(perceptron), member(perceptron)]))
    assert "two tasks or more" in str(BESIDE.refuse([member(perceptron)]))
    assert "task 2 of 2: hooks of modules" in str(BESIDE.refuse([member(perceptron), hooked]))
