import inspect

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from dovetail.train import FUSE, RESIDENT, Scheduler, SessionMember, Training, schedulers
from dovetail.train.schedulers import only_after_steps
from dovetail.vocabulary import ProgramError

CPU = torch.device("cpu")


def training(make=lambda optimizer: {}, **options):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    given = {"batches": [torch.ones(8, 4)] * 3, "loss": lambda model, batch: model(batch).square().mean()}
    return Training(model=model, optimizer=optimizer, **{**given, **options, **make(optimizer)})


def rates(training, *, steps, observe=lambda session, step: None):
    session = RESIDENT.open([SessionMember(training=training)], device=CPU, threads=1)
    found = []
    for step in range(1, steps + 1):
        session.advance()
        observe(session, step)
        found.append(round(training.optimizer.param_groups[0]["lr"], 9))
    return found


def halving(optimizer, **when):
    return Scheduler(lr_scheduler.StepLR(optimizer, 1, gamma=0.5), **when)


def test_a_scheduler_steps_after_each_step_or_at_each_epochs_end():
    assert rates(training(lambda o: {"schedule": halving(o)}), steps=3) == [0.5, 0.25, 0.125]
    assert rates(training(lambda o: {"schedule": halving(o, every="epoch")}), steps=7) == [
        1,
        1,
        0.5,
        0.5,
        0.5,
        0.25,
        0.25,
    ]


def test_several_step_each_in_its_time():
    def both(optimizer):
        return {"schedules": {"a": lr_scheduler.ExponentialLR(optimizer, 0.1), "b": halving(optimizer, every="epoch")}}

    assert rates(training(both), steps=4) == [0.1, 0.01, 0.0005, 0.00005]


def test_an_epoch_ends_after_its_steps_not_its_batches():
    given = training(lambda o: {"schedule": halving(o, every="epoch")}, accumulate=2)  # one batch is left over
    assert rates(given, steps=2) == [0.5, 0.25]


def plateau(optimizer):
    return {"schedule": Scheduler(lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5), metric="score")}


def test_a_plateau_steps_with_what_evaluation_reports():
    scores = {2: 1.0, 4: 2.0, 6: 3.0}
    found = rates(
        training(plateau),
        steps=6,
        observe=lambda session, step: step in scores and session.observe({"score": scores[step]}),
    )
    assert found == [1, 1, 1, 0.5, 0.5, 0.25]


def test_members_of_a_stack_observe_each_for_itself():
    members = [SessionMember(training=training(plateau)) for _ in range(2)]
    session = FUSE.open(members, device=CPU, threads=1)
    for score in (1.0, 2.0):
        session.advance((0, 1))
        session.observe({"score": score}, 1)
    assert [member.training.optimizer.param_groups[0]["lr"] for member in members] == [1.0, 0.5]


def test_in_a_step_function_only_a_scheduler_that_says_when_is_stepped():
    def step(training, batch):
        training.optimizer.step()
        return {"loss": 0.0}

    def both(optimizer):
        return {"schedules": {"own": lr_scheduler.ExponentialLR(optimizer, 0.1), "ours": halving(optimizer)}}

    assert rates(training(both, step=step, loss=None), steps=2) == [0.5, 0.25]


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (
            lambda o: {"schedule": lr_scheduler.ReduceLROnPlateau(o)},
            {},
            r"dt.Scheduler\(ReduceLROnPlateau\(...\), metric",
        ),
        (lambda o: {"schedules": {"p": lr_scheduler.ReduceLROnPlateau(o)}}, {}, "must be told a metric"),
        (lambda o: {"schedule": halving(o, every="batch")}, {}, "every 'step' or every 'epoch', got every='batch'"),
        (lambda o: {"schedule": halving(o, every="epoch", metric="loss")}, {}, "leave out every="),
        (lambda o: {"schedule": Scheduler(3)}, {}, r"must have step\(\), state_dict\(\) and load_state_dict\(\); int"),
        (lambda o: {"schedule": halving(o, every="epoch")}, {"batches": iter([])}, r"Training.schedule .* have none"),
        (plateau, {"batches": iter([])}, r"Training\(evaluate_every=...\)"),
    ],
)
def test_schedulers_that_cannot_be(make, options, message):
    with pytest.raises(ProgramError, match=message):
        training(make, **options)


def test_a_metric_that_evaluation_does_not_report_is_named():
    session = RESIDENT.open([SessionMember(training=training(plateau))], device=CPU, threads=1)
    with pytest.raises(ProgramError, match=r"metric 'score' with which Training.schedule steps; it reports \['loss'\]"):
        session.observe({"loss": 1.0})


def test_fields_that_were_changed_later_are_looked_at_again():
    given = training()
    given.schedule = lr_scheduler.ReduceLROnPlateau(given.optimizer)
    with pytest.raises(ProgramError, match="must be told a metric"):
        given.check()


def test_weights_that_change_under_way_have_no_epochs():
    assert "at each epoch's end" in only_after_steps(training(lambda o: {"schedule": halving(o, every="epoch")}))
    assert "the metric 'score'" in only_after_steps(training(plateau))
    assert only_after_steps(training(lambda o: {"schedule": halving(o)})) is None


def test_the_signature_of_a_scheduler_is_read_once_and_not_at_each_step(monkeypatch):
    read, signature = [], inspect.signature
    monkeypatch.setattr(inspect, "signature", lambda each: read.append(each) or signature(each))
    schedulers._needs_metric.cache_clear()
    rates(training(lambda o: {"schedule": lr_scheduler.StepLR(o, 1)}), steps=5)
    assert len([each for each in read if each is lr_scheduler.StepLR.step]) == 1
