import collections
import copy
import dataclasses
import functools
import itertools
import random

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from dovetail.testing import programs
from dovetail.train import (
    FUSE,
    INTERLEAVE,
    PIPELINE,
    REPLICATE,
    RESIDENT,
    SHARD,
    SPILL,
    SessionMember,
    Training,
    checkpoint,
    undeclared,
)
from dovetail.train.undeclared import UndeclaredState
from dovetail.vocabulary import CheckpointError, ProgramError

CPU = torch.device("cpu")
COUNT, CACHE, DRAWN = 0, {}, itertools.cycle([1.0])


def training_of(step, model=None, **options):
    model = model or nn.Linear(4, 1)
    given = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "batches": [torch.ones(8, 4)]}
    return Training(model=model, step=step, **{**given, **options})


def opened(training):
    return RESIDENT.open([SessionMember(training=training)], device=CPU, threads=1)


def advance(session, *, steps):
    return [session.advance()[0] for _ in range(steps)]


def descend(training, batch):
    loss = training.model(batch).square().mean()
    training.optimizer.zero_grad()
    loss.backward()
    training.optimizer.step()
    return {"loss": loss.detach()}


class Count:
    """A counter that can be saved."""

    def __init__(self):
        self.value, self.history = 0, []

    def state_dict(self):
        return {"value": self.value, "history": self.history}

    def load_state_dict(self, found):
        self.value, self.history = found["value"], found["history"]


def declared():
    """A learning rate that a scheduler lowers at each epoch's end, averaged weights, and a counter."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    average, count = torch.optim.swa_utils.AveragedModel(model), Count()

    def step(training, batch):
        found = descend(training, batch * (1 + count.value))
        count.value += 1
        count.history.append(torch.full((), count.value))
        if count.value % 3 == 0:
            schedule.step(float(count.value))
        average.update_parameters(model)
        return {"loss": found["loss"] + average(batch).sum().detach(), "rate": optimizer.param_groups[0]["lr"]}

    more = {"schedules": {"plateau": schedule}, "state": {"average": average, "count": count}}
    return training_of(step, model, optimizer=optimizer, batches=list(torch.rand(5, 8, 4)), **more)


def test_what_a_step_declares_goes_on_where_it_stopped(tmp_path):
    expected = advance(opened(declared()), steps=12)
    first = opened(declared())
    advance(first, steps=5)
    checkpoint.write(tmp_path, first.state(), task="t", attempt=1, retention=checkpoint.Retention(count=1))
    state, _ = checkpoint.recover(tmp_path)
    second = opened(declared())
    second.load(state)
    for wanted in expected[5:]:
        (found,) = second.advance()
        assert torch.equal(found.loss, wanted.loss)
        assert found.metrics == wanted.metrics
    assert expected[-1].metrics["rate"] < 0.1


def test_a_checkpoint_of_a_training_without_any_has_no_word_of_it_and_one_with_others_is_refused():
    assert not opened(training_of(descend)).state().values.keys() & {"schedules", "state"}
    state = opened(declared()).state()
    other = declared()
    with pytest.raises(
        CheckpointError, match=r"the state that the program builds.*\['average', 'count'\].*\['count'\]"
    ):
        opened(dataclasses.replace(other, state={"count": other.state["count"]})).load(state)


def test_what_is_loaded_is_a_copy():
    one, other = declared(), declared()
    first, second = opened(one), opened(other)
    first.advance()
    second.load(first.state())
    second.advance()
    assert one.state["count"].history[0] == 1
    assert other.state["count"].history[0] is not one.state["count"].history[0]


def counting_nonlocal():
    count = 0

    def step(training, batch):
        nonlocal count
        count += 1
        return descend(training, batch)

    return training_of(step), "'count' changed in the first 1 steps"


def counting_in_a_list():
    counts = [0]

    def step(training, batch):
        counts[0] += 1
        return descend(training, batch)

    return training_of(step), "'counts' changed"


def counting_globally():
    def step(training, batch):
        global COUNT
        COUNT += 1
        return descend(training, batch)

    return training_of(step), "'COUNT' changed"


def counting_on_the_training():
    def step(training, batch):
        training.count = getattr(training, "count", 0) + 1
        return descend(training, batch)

    return training_of(step), "'training.count' changed in the first 2 steps"


def counting_in_an_object():
    class Trainer:
        count = 0

        def step(self, training, batch):
            self.count += 1
            return descend(training, batch)

    trainer = Trainer()
    trainer.count = 0
    return training_of(trainer.step), "'self.count' changed"


def counting_in_a_helper():
    seen = collections.deque(maxlen=3)

    def remember(loss):
        seen.append(float(loss))

    def step(training, batch):
        found = descend(training, batch)
        remember(found["loss"])
        return found

    return training_of(step), "'remember.seen' changed"


def averaging_by_hand():
    model = nn.Linear(4, 1)
    average = copy.deepcopy(model)

    def step(training, batch):
        found = descend(training, batch)
        for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
            mine.data.mul_(0.9).add_(theirs.data, alpha=0.1)
        return found

    return training_of(step, model), "'average' changed"


def drawing():
    generator = random.Random(3)

    def step(training, batch):
        return descend(training, batch * generator.random())

    return training_of(step), "'generator' changed"


def seldom():
    """Schedulers in a dict, stepped at the fourth step."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    taken = {"step": torch.optim.lr_scheduler.StepLR(optimizer, 1)}
    CACHE.clear()

    def step(training, batch):
        found = descend(training, batch)
        CACHE[len(CACHE)] = batch
        if len(CACHE) == 4:
            taken["step"].step()
        return found

    return training_of(step, model, optimizer=optimizer), "'taken' changed in the first 4 steps"


def scheduling():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)

    def step(training, batch):
        return descend(training, batch)  # it would step at the end of an epoch that is far away

    return training_of(functools.partial(lambda schedule, *each: step(*each), schedule), model), "'0', a CosineAnn"


def counting_in_a_loss():
    counts = [0]

    def loss(model, batch):
        counts[0] += 1
        return model(batch).mean() * counts[0]

    return training_of(None, loss=loss), "'counts' changed in the first 1 steps"


def counting_by_itertools():
    numbers = itertools.count()

    def loss(model, batch):
        return model(batch).mean() * next(numbers)

    return training_of(None, loss=loss), "'numbers' changed in the first 1 steps"


def drawing_from(make, message):
    """A loss that draws from an iterator, or from a generator of NumPy's older kind."""

    def build():
        drawn = make()

        def loss(model, batch):
            return model(batch).mean() * (drawn.rand() if hasattr(drawn, "rand") else next(drawn)[0])

        return training_of(None, loss=loss), f"'drawn'{message}"

    return build


def drawing_globally():
    def loss(model, batch):
        return model(batch).mean() * next(DRAWN)

    return training_of(None, loss=loss), "'DRAWN', a cycle, is not: its position is in no checkpoint"


def counting_in_a_dict():
    counts = collections.defaultdict(int)

    def step(training, batch):
        counts["steps"] += 1
        return descend(training, batch)

    return training_of(step), "'counts' changed in the first 2 steps"


def remembering_in_a_dict():
    history = {}

    def step(training, batch):
        history[len(history)] = 1
        return descend(training, batch)

    return training_of(step), "'history' changed in the first 2 steps"


def writing_into_an_array():
    array = numpy.zeros(4)

    def step(training, batch):
        array[1] += 1
        return descend(training, batch)

    return training_of(step), "'array' changed in the first 1 steps"


def counting_in_a_callback():
    counts = [0]

    def callback(training, step):
        counts[0] += 1

    return training_of(descend, callbacks=[callback]), "'counts' changed in the first 1 steps"


def scheduling_in_a_callback():
    training = training_of(descend)
    schedule = torch.optim.lr_scheduler.StepLR(training.optimizer, 1)
    training.callbacks = [lambda training, step: schedule.step()]
    return training, "'schedule', a StepLR"


CHANGING = [
    drawing_from(lambda: iter(DataLoader(torch.ones(8, 1))), ", a _SingleProcessDataLoaderIter, is not: its position"),
    drawing_from(lambda: itertools.cycle([[1.0]]), ", a cycle, is not: its position is in no checkpoint"),
    drawing_from(lambda: ([x] for x in range(9)), ", a generator, is not: its position is in no checkpoint"),
    drawing_from(lambda: numpy.random.RandomState(0), " changed in the first 1 steps"),
    drawing_globally,
    counting_in_a_dict,
    remembering_in_a_dict,
    writing_into_an_array,
    counting_in_a_loss,
    counting_by_itertools,
    counting_in_a_callback,
    scheduling_in_a_callback,
    counting_nonlocal,
    counting_in_a_list,
    counting_globally,
    counting_on_the_training,
    counting_in_an_object,
    counting_in_a_helper,
    averaging_by_hand,
    drawing,
    seldom,
    scheduling,
]


@pytest.mark.parametrize("changing", CHANGING)
def test_what_a_step_changes_and_nobody_saves_is_refused(changing):
    training, message = changing()
    with pytest.raises(ProgramError, match=rf"(?s)must be declared; its variable {message}.*schedules=.*state="):
        advance(opened(training), steps=4)


def test_the_refusal_says_whose_variable_it_is():
    for changing, whose in ((counting_in_a_loss, "loss"), (counting_in_a_callback, r"callbacks\[0\]")):
        with pytest.raises(ProgramError, match=rf"what Training.{whose} changes must be declared"):
            opened(changing()[0]).advance()


def test_callbacks_see_each_step_once_its_weights_are_there():
    seen = Count()

    def look(training, step):
        seen.value = step
        seen.history.append(float(training.model.weight.sum()))

    training = training_of(None, loss=lambda model, batch: model(batch).mean(), callbacks=[look], state={"seen": seen})
    session = opened(training)
    sums = []
    for _ in range(3):
        session.advance()
        sums.append(training.model.weight.sum().item())
    assert (seen.value, seen.history) == (3, sums)


@pytest.mark.parametrize("program", ["averaged", "fp16"])
@pytest.mark.parametrize("technique", [FUSE, SPILL, INTERLEAVE, REPLICATE, SHARD, PIPELINE], ids=lambda each: each.name)
def test_techniques_that_cannot_name_what_and_the_alternative(technique, program):
    size = 2 if technique in (FUSE, INTERLEAVE) else 1
    reason = technique.refuse([programs.fresh(program, seed=seed) for seed in range(size)])
    assert ("Training.callbacks" if program == "averaged" else "precision 'fp16'") in reason
    assert technique.name in reason or technique is INTERLEAVE
    assert "technique 'resident'" in reason


def test_a_step_that_overflows_is_left_out_and_halves_the_scale():
    training = programs.fresh("fp16").training
    training.loss = lambda model, batch: 3000 * programs.squared(model, batch)
    session = opened(training)
    before = training.model[0].weight.clone()
    session.advance()
    assert torch.equal(training.model[0].weight, before)
    assert dict(session.state().values["scaler"]["__dict__"])["scale"] == {"__float__": (2.0**15).hex()}
    advance(session, steps=12)
    assert not torch.equal(training.model[0].weight, before)


def test_what_stays_as_it_is_may_be_held():
    model = nn.Linear(4, 1)
    teacher, weights = nn.Linear(4, 1), list(model.parameters())
    x, names, optimizers = torch.rand(8, 4), {"a": 1}, []

    def step(training, batch):
        CACHE[len(CACHE)] = batch
        assert weights is not optimizers
        with torch.no_grad():
            goal = teacher(x) * names["a"]
        return descend(training, batch + goal)

    training = training_of(step, model)
    optimizers += training.optimizer.param_groups
    advance(opened(training), steps=8)


class Positioned(Dataset, Count):
    """A dataset that could be saved, and is not asked to be."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return torch.ones(4)


def test_what_has_nothing_to_save_and_caches_that_the_first_step_fills_may_be_held(tmp_path):
    scaler, data, masks, log = torch.amp.GradScaler("cpu", enabled=False), Positioned(), {}, tmp_path / "log"

    def step(training, batch):
        masks.setdefault(len(batch), torch.ones(len(batch), 1))
        file.write("step")
        return descend(training, scaler.scale(batch) * masks[len(batch)] + data[0])

    with log.open("w") as file:
        advance(opened(training_of(step)), steps=8)


def test_of_large_arrays_only_a_sample_is_read_and_of_those_that_cannot_change_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(undeclared, "_CHECKED_ELEMENTS", 100)
    monkeypatch.setattr(undeclared, "_SAMPLED_ELEMENTS", 10)
    large = numpy.zeros((50, 20))
    before = undeclared._bits(large)
    large[0, 1] = 1
    assert undeclared._bits(large) == before
    large[5, 0] = 1
    assert undeclared._bits(large) != before
    large.flags.writeable = False
    assert undeclared._bits(large) == ((50, 20), None)


def test_of_long_text_no_copy_is_kept():
    found = UndeclaredState(training_of(descend))
    assert len(repr(found._mark("a" * 10_000))) < 100
    assert found._mark("a" * 10_000) != found._mark("b" * 10_000)


def test_what_may_stand_at_the_top_level_is_no_number():
    with pytest.raises(ProgramError, match="may stand in a list or dict at the top level of the file"):
        opened(counting_globally()[0]).advance()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state": {"count": 3}}, r"state\['count'\] must have state_dict\(\) and load_state_dict\(\); a int has not"),
        ({"schedules": [1]}, "schedules must be a dict by name, got list"),
        ({"callbacks": [3]}, "callbacks must be functions"),
        ({"precision": "fp16"}, r"Use autocast and a torch.amp.GradScaler there, and give it as Training\(state="),
    ],
)
def test_declarations_that_cannot_be(options, message):
    with pytest.raises(ProgramError, match=message):
        training_of(**{"step": descend, **options})
