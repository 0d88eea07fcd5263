import pytest
import torch
from torch import nn

from dovetail.testing import programs
from dovetail.testing.techniques import TechniqueConformance
from dovetail.train import RESIDENT, SessionMember, Training, checkpoint
from dovetail.vocabulary import ProgramError, TrainingError

CPU = torch.device("cpu")


class TestResident(TechniqueConformance):
    technique = RESIDENT


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestResidentOnCuda(TechniqueConformance):
    technique = RESIDENT
    device = torch.device("cuda", 0)

    @pytest.fixture(autouse=True)
    def _deterministic(self, monkeypatch):
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        yield
        torch.use_deterministic_algorithms(False)

    @pytest.mark.parametrize("program", programs.PLAIN)
    def test_a_plain_loop_gives_the_same(self, program):
        # The plain loop of this law runs on the CPU, whose sums are in another order.
        self.tolerance = 1e-4
        super().test_a_plain_loop_gives_the_same(program)


def session_of(training, *, threads=1):
    return RESIDENT.open([SessionMember(training=training)], device=CPU, threads=threads)


def linear(**options):
    model = nn.Linear(4, 1)
    return Training(
        **{
            "model": model,
            "batches": [torch.ones(8, 4)],
            "loss": lambda model, batch: model(batch).square().mean(),
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        }
        | options
    )


def test_a_batch_that_the_model_rejects_is_described():
    batches = [torch.ones(8, 4), {"wrong": torch.ones(8, 3), "label": "x"}]
    session = session_of(linear(batches=batches))
    session.advance()
    with pytest.raises(TrainingError, match=r"step 2 \(epoch 0, batch 2\).*\{wrong: float32\[8, 3\], label: str\}"):
        session.advance()


def test_running_out_of_memory_passes_through():
    def loss(model, batch):
        raise torch.OutOfMemoryError("full")

    with pytest.raises(torch.OutOfMemoryError, match="full"):
        session_of(linear(loss=loss)).advance()


def test_evaluation_must_give_a_dict():
    session = session_of(linear(evaluate=lambda model: 0.5))
    with pytest.raises(ProgramError, match="must give a dict of metrics, got float"):
        session.evaluate()


def test_a_step_function_must_give_a_loss():
    session = session_of(linear(loss=None, step=lambda training, batch: {"accuracy": 1.0}))
    with pytest.raises(ProgramError, match=r"a metric named 'loss', got \['accuracy'\]"):
        session.advance()


def test_a_model_from_a_hub_is_trained_and_its_frozen_parts_stay_frozen():
    hub = linear()
    hub.model.eval()
    session_of(hub)
    assert hub.model.training
    tuned = programs.fresh("frozen").training
    session = session_of(tuned)
    session.evaluate()
    assert tuned.model.training
    assert not tuned.model[1].training


def test_evaluation_is_without_gradients_and_modes_come_back():
    seen = []

    def evaluate(model):
        seen.append((model.training, torch.is_grad_enabled()))
        raise KeyError("an evaluation that fails")

    training = linear(evaluate=evaluate)
    with pytest.raises(KeyError):
        session_of(training).evaluate()
    assert seen == [(False, False)]
    assert training.model.training


def test_closing_leaves_the_model_as_it_was():
    member = programs.fresh("dropout")
    session = RESIDENT.open([member], device=CPU, threads=1)
    dropout = member.training.model[2]
    assert type(dropout) is not nn.Dropout
    session.close()
    assert type(dropout) is nn.Dropout


@pytest.mark.parametrize("threads", [1, 2])
def test_it_uses_its_threads(threads):
    before = torch.get_num_threads()
    try:
        session_of(linear(), threads=threads)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


class Float32Momentum(torch.optim.Optimizer):
    """Keeps its state in more digits than its parameters have, as optimizers for half precision do."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.05})

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            slots = self.state[parameter]
            slots.setdefault("master", parameter.float().clone()).sub_(parameter.grad.float(), alpha=0.05)
            parameter.copy_(slots["master"])


def test_an_optimizer_may_keep_more_digits_than_its_parameters(tmp_path):
    def half():
        torch.manual_seed(0)
        model = nn.Linear(4, 1).bfloat16()
        batches = [torch.randn(8, 4).bfloat16() for _ in range(4)]
        return linear(model=model, batches=batches, optimizer=Float32Momentum(model.parameters()))

    whole, first, second = session_of(half()), session_of(half()), session_of(half())
    for _ in range(6):
        whole.advance()
    for _ in range(3):
        first.advance()
    path, _ = checkpoint.write(tmp_path, first.state(), task="half", attempt=1)
    second.load(checkpoint.read(path))
    for _ in range(3):
        second.advance()
    for name, tensor in whole.state().tensors.items():
        assert torch.equal(tensor, second.state().tensors[name]), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": 5}, "Training.model must be a torch.nn.Module, got int"),
        ({"loss": None}, "either a loss or a step function"),
        ({"step": lambda training, batch: {}}, "either a loss or a step function"),
        ({"optimizer": {}}, "several optimizers must go with a step function"),
        ({"batches": 3}, "Training.batches must be iterable, got int"),
        ({"precision": "fp8"}, "must be one of .*bf16-pure.*, got 'fp8'"),
        ({"accumulate": 0}, "Training.accumulate must be a whole number of at least 1, got 0"),
        ({"evaluate_every": 2.5}, "Training.evaluate_every must be a whole number of at least 1, got 2.5"),
        ({"schedule": {"one": None}}, r"several by name go into Training\(schedules="),
    ],
)
def test_a_training_that_cannot_be(options, message):
    with pytest.raises(ProgramError, match=message):
        linear(**options)


def plateau(optimizer):
    return {"schedule": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)}


def prepared_batches(optimizer):
    from accelerate.data_loader import DataLoaderShard

    return {"batches": DataLoaderShard([torch.ones(4)])}


def prepared_optimizer(optimizer):
    from accelerate import Accelerator

    return {"optimizer": Accelerator(cpu=True).prepare(optimizer)}


def closing(optimizer):
    return {"optimizer": torch.optim.LBFGS(optimizer.param_groups[0]["params"])}


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            plateau,
            r"ReduceLROnPlateau must be told a metric .*Give it as dt.Scheduler\(ReduceLROnPlateau\(...\), metric=",
        ),
        (prepared_batches, r"its DataLoaderShard comes from accelerate.*Leave accelerator.prepare\(...\) out"),
        (prepared_optimizer, "its AcceleratedOptimizer comes from accelerate"),
        (closing, r"LBFGS needs one. Give Training\(step=...\)"),
    ],
)
def test_parts_that_would_fail_inside_a_step_are_refused_by_name(made, message):
    optimizer = linear().optimizer
    with pytest.raises(ProgramError, match=message):
        linear(**made(optimizer))


def test_lbfgs_trains_by_a_step_of_its_own():
    def step(training, batch):
        def closure():
            training.optimizer.zero_grad()
            loss = training.model(batch).square().mean()
            loss.backward()
            return loss

        return {"loss": training.optimizer.step(closure)}

    model = nn.Linear(4, 1)
    session = session_of(linear(model=model, loss=None, step=step, optimizer=torch.optim.LBFGS(model.parameters())))
    first, last = (session.advance()[0].loss.item() for _ in range(2))
    assert last < first
