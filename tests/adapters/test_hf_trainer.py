"""Trainers of transformers train as their own `train()` does, go on, and can be fused; what cannot be kept is named."""

import contextlib
import io

import pytest
import torch
import trainer_programs as programs
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments

import dovetail as dt
from dovetail.train import FUSE, SessionMember
from dovetail.vocabulary import DovetailError, ProgramError
from tests.adapters.sessions import furthest, furthest_weights, fused, losses_of, opened, resumed, taken

RATES = {"finetuning": 5e-4, "weighted": 5e-4, "lora": 5e-3}
SFT = pytest.param("sft", marks=pytest.mark.slow)  # to import trl takes as long as the other tests


@pytest.fixture(autouse=True)
def silence():
    with contextlib.redirect_stdout(io.StringIO()):
        yield


@pytest.mark.parametrize("kind", [*RATES, SFT])
def test_losses_and_weights_are_those_of_train_over_several_epochs(kind):
    # An epoch has 16 steps, 20, or, of accumulated batches, 5 or 6; bench/adapters.py takes 50.
    steps, rate = (24 if kind in ("finetuning", "sft") else 8), RATES.get(kind, 2e-3)
    theirs, model = programs.train_losses(kind, rate, 3, steps=steps)
    training = programs.from_parts(kind, rate, 3)
    assert furthest(theirs, taken(training, steps, seed=3)) <= 1e-6
    assert furthest_weights(model, training.model) <= 1e-6


@pytest.mark.parametrize(
    "kind", ["weighted", *(pytest.param(each, marks=pytest.mark.slow) for each in RATES if each != "weighted")]
)
def test_a_stopped_training_goes_on_bit_by_bit(kind):
    def build():
        return programs.from_parts(kind, RATES[kind], 0)

    # Within the second epoch: of accumulated steps an epoch has five or six.
    steps, stop = (20, 18) if kind == "finetuning" else (9, 7)
    assert resumed(build, steps, stop=stop) == taken(build(), steps)


def test_tasks_of_several_rates_are_one_program():
    rates = [5e-4, 2e-4]  # with padding, and a loss of its own
    alone = [taken(programs.from_parts("weighted", rate, 0), 3) for rate in rates]
    together = fused([programs.from_parts("weighted", rate, 0) for rate in rates], 3)
    assert max(map(furthest, alone, together)) <= 1e-5


def test_evaluation_is_the_trainers_own():
    made = programs.trainer("finetuning", 5e-4, 0)
    theirs = made.evaluate()
    with opened(programs.from_parts("finetuning", 5e-4, 0)) as session:
        ours = session.evaluate()
        losses_of(session, 2)
    assert ours.keys() == {"eval_loss", "eval_accuracy"}
    assert ours["eval_loss"] == pytest.approx(theirs["eval_loss"], abs=1e-6)
    assert ours["eval_accuracy"] == theirs["eval_accuracy"]


def rows():
    return [{"input_ids": row, "labels": row} for row in torch.randint(60, (40, 8), generator=torch.Generator())]


def made(kind=Trainer, callbacks=(), **more):
    arguments = TrainingArguments(**programs.arguments(1e-3, 0, **{"max_steps": 30, **more}))
    return kind(model=programs.causal_model(), args=arguments, train_dataset=rows(), callbacks=list(callbacks))


@pytest.mark.parametrize(
    "more",
    [
        {"label_smoothing_factor": 0.1, "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 4},
        {"gradient_accumulation_steps": 2, "data_seed": 11, "max_grad_norm": 0.0},
        {"train_sampling_strategy": "group_by_length", "per_device_train_batch_size": 8},
    ],
    ids=["smoothing", "data seed", "grouped"],
)
def test_arguments_keep_their_meaning(more):
    torch.manual_seed(0)
    original = made(**more)
    original.add_callback(programs.StopAfter(8))
    original.train()
    theirs = [each["loss"] for each in original.state.log_history if "loss" in each]
    torch.manual_seed(0)
    assert furthest(theirs, taken(dt.from_trainer(made(**more)), 8)) <= 1e-6


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # by the compiler, at what breaks its graph
def test_a_model_that_the_arguments_compile_is_compiled(monkeypatch):
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "no")  # the arguments set it, for good
    torch.manual_seed(0)
    plain = taken(dt.from_trainer(made()), 3)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    training = dt.from_trainer(made(torch_compile=True, torch_compile_backend="aot_eager"))
    assert furthest(plain, taken(training, 3)) <= 1e-6
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0


def test_best_checkpoint_and_how_often_to_evaluate_are_taken_over():
    more = {"eval_strategy": "steps", "eval_steps": 7, "metric_for_best_model": "accuracy", "greater_is_better": True}
    arguments = TrainingArguments(**programs.arguments(1e-3, 0, max_steps=30, **more))
    made = Trainer(model=programs.causal_model(), args=arguments, train_dataset=rows(), eval_dataset=rows())
    training = dt.from_trainer(made)
    assert (training.evaluate_every, training.keep_best, training.goal) == (7, "eval_accuracy", "max")


def test_what_a_loss_of_ones_own_reads_parts_tasks():
    def member(**named):
        plain = programs.trainer("weighted", 5e-4, 0)
        made = programs.WeightedTrainer(
            model=plain.model,
            args=plain.args,
            train_dataset=plain.train_dataset,
            data_collator=plain.data_collator,
            **named,
        )
        return SessionMember(training=dt.from_trainer(made))

    reason = FUSE.refuse([member(class_weights=(1.0, 2.0)), member(class_weights=(1.0, 9.0))])
    assert "the loss is a TrainerLoss, and not the same one in both" in reason


def test_what_a_loss_keeps_in_its_trainer_is_refused():
    class Averaging(Trainer):
        average = 0.0

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss = super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
            self.average = 0.9 * self.average + 0.1 * loss.item()
            return loss + 0.1 * (loss - self.average).abs()

    with opened(dt.from_trainer(made(Averaging))) as session:
        session.advance()
        with pytest.raises(ProgramError, match=r"it changed self\.average"):
            session.advance()


class Counting(TrainerCallback):
    def __init__(self):
        self.calls = []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.calls.append((state.global_step, round(state.epoch, 3)))

    def on_epoch_end(self, args, state, control, **kwargs):
        self.calls.append("epoch")


def test_callbacks_that_read_are_called():
    counting = Counting()
    taken(dt.from_trainer(made(callbacks=[counting], per_device_train_batch_size=20)), 3)
    assert counting.calls == [(1, 0.5), (2, 1.0), "epoch", (3, 1.5)]


def test_callbacks_that_change_training_are_refused_by_name():
    class Early(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            pass

    class Ending(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = True

    with pytest.raises(ProgramError, match="the callback Early has on_pre_optimizer_step, which is not called"):
        dt.from_trainer(made(callbacks=[Early()]))
    stopping = made(callbacks=[EarlyStoppingCallback(3)], metric_for_best_model="loss", greater_is_better=False)
    with pytest.raises(ProgramError, match=r"metric='eval_loss', patience=3, goal='min'"):
        dt.from_trainer(stopping)
    words = "Ending must only read; its on_step_end changed the control"
    with opened(dt.from_trainer(made(callbacks=[Ending()]))) as session, pytest.raises(ProgramError, match=words):
        session.advance()


def test_what_cannot_be_kept_is_named(monkeypatch):
    class Stepping(Trainer):
        def training_step(self, *arguments, **named):
            return super().training_step(*arguments, **named)

    class Annealing(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return model(**inputs).loss * self.state.global_step

    for wrong, words in [
        (lambda: made(Stepping), "Stepping.training_step takes the step by itself"),
        (lambda: made(Annealing), r"Annealing reads self\.state"),
        (lambda: made(neftune_noise_alpha=5.0), r"TrainingArguments\(neftune_noise_alpha=...\) cannot be kept"),
        (lambda: "a trainer", "must be given a transformers.Trainer, got str"),
    ]:
        with pytest.raises(ProgramError, match=words):
            dt.from_trainer(wrong())
    import transformers

    monkeypatch.setattr(transformers, "__version__", "4.31.0")
    with pytest.raises(DovetailError, match=r"transformers must be of version 4.50 or newer; found 4.31.0"):
        dt.from_trainer(None)
