"""What cannot be cut is refused before training, naming the operation."""

import pytest
import torch
from torch import nn

from dovetail.train.cutting import ModelCall, capture_call, cut, equal, loss_given
from dovetail.vocabulary import TechniqueRefused
from tests.train.cutting.chains import check, check_all, mean

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Model(nn.Module):
    """Three layers with something between the first and the second, and something between the second and the third."""

    def __init__(self, first=lambda model, x: x, second=lambda model, x, y: y):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.first, self.second = first, second
        self.register_buffer("count", torch.zeros(()))
        self.kept = []

    def forward(self, x):
        x = self.first(self, self.a(x))
        return self.c(self.second(self, x, self.b(x)))


def made(model, stages, x=X):
    return cut(model, ModelCall(args=(x,)), stages=stages)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([["a", "b"], ["c", "d"]], r"it does not call \['d'\]"),
        ([["a", "b"], ["b", "c"]], r"in one stage; \['b'\]"),
        ([["a", "b", "c"], []], "stage 1 of 2 has none"),
        ([["b"], ["a", "c"]], "'b'.* is in stage 0, and reads what the call of 'a'.* in stage 1"),
    ],
)
def test_stages_that_cannot_be(stages, message):
    with pytest.raises(TechniqueRefused, match=message):
        made(Model(), stages)


def test_joins_of_profiles_go_where_their_layers_are():
    pieces = made(Model(second=lambda model, x, y: x + y), [["a", "b"], ["+1", "c"]]).pieces
    assert pieces[0].gives == pieces[1].takes
    assert len(pieces[0].gives) == 1


def test_a_changed_value_that_another_stage_needs_as_it_was():
    class Crossed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c, self.d = (nn.Linear(4, 4) for _ in range(4))

        def forward(self, x):
            x = self.a(x)
            y = self.b(x)
            return y + self.d(self.c(x.relu_()))

    with pytest.raises(TechniqueRefused, match=r"operation 'relu_'.* of stage 0 changes what .*'b'.* of stage 1 reads"):
        made(Crossed(), [["a", "c"], ["b", "d"]])


def test_a_change_in_place_of_views_that_cross():
    def second(model, x, y):
        left, right = x[:, :2], x
        y = model.b(y)
        left.mul_(2.0)
        return right + y

    with pytest.raises(TechniqueRefused, match=r"operation 'mul_' of stage 1 changes .*share memory"):
        made(Model(second=second), [["a", "b"], ["b#2", "c"]])


def test_a_change_in_place_of_what_arrived_is_made_on_a_copy():
    check_all(Model(second=lambda model, x, y: y.relu_() + model.b(y)), mean, X)


def test_a_buffer_that_changes_in_two_stages():
    def count(model, x, *rest):
        model.count += 1
        return x

    check(Model(first=count), mean, X, [["a"], ["b", "c"]])
    with pytest.raises(TechniqueRefused, match=r"operation 'add_' changes 'count' in stage \d, .* in stage \d"):
        made(Model(first=count, second=count), [["a"], ["b", "c"]])


def test_decisions_by_numbers():
    """Later stages read the number too; an earlier one that goes on after it cannot."""

    def first(model, x):
        return x * 2 if x.sum().item() > -100 else x

    check_all(Model(first=first), mean, X)

    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))

        def forward(self, x):
            y = self.a(x)
            if bool((y > 1e9).any()):
                y = -y
            return self.c(y) + self.b(x)

    with pytest.raises(
        TechniqueRefused, match=r"'__bool__'.* reads a value of stage 1, and stage 0 has layers after it"
    ):
        made(Late(), [["b"], ["a", "c"]])


def test_another_way_through_the_code():
    def first(model, x):
        return torch.sin(x) if x.sum().item() > 0 else torch.cos(x)

    model = Model(first=first)
    cutting = made(model, [["a"], ["b", "c"]])
    sign = model.a(X).sum() > 0
    other = next(x for x in (X * k for k in (-50.0, 50.0)) if (model.a(x).sum() > 0) != sign)
    with pytest.raises(
        TechniqueRefused, match=r"this call does '(sin|cos)' where the example call had operation '(sin|cos)'"
    ):
        cutting.pieces[0](cutting.inputs(ModelCall(args=(other,))))


def test_what_is_kept_between_calls():
    def first(model, x):
        model.kept.append(1)
        return x * len(model.kept)

    with pytest.raises(TechniqueRefused, match="must together give what the whole gives"):
        made(Model(first=first), [["a"], ["b", "c"]])


def test_arguments_must_stay():
    class Scaled(nn.Sequential):
        def forward(self, x, scale):
            return super().forward(x) * scale

    model = Scaled(nn.Linear(4, 4), nn.Linear(4, 4))
    call = ModelCall(args=(X,), kwargs={"scale": 2.0})
    cutting = cut(model, call, stages=[["0"], ["1"]])
    with pytest.raises(TechniqueRefused, match=r"has 2\.0 where this one has 3\.0"):
        cutting.inputs(ModelCall(args=(X,), kwargs={"scale": 3.0}))
    with pytest.raises(TechniqueRefused, match="the same arguments"):
        cutting.inputs(ModelCall(args=(X, 2.0)))


def test_a_piece_without_what_it_takes():
    cutting = made(Model(), [["a"], ["b", "c"]])
    with pytest.raises(ValueError, match="stage 1 must be given what it takes"):
        cutting.pieces[1]({})


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda model, batch: batch.sum(), "does not call it"),
        (lambda model, batch: model.a(batch).sum(), "calls its part 'a'"),
        (lambda model, batch: model.a.weight.sum() + model(batch).sum(), "computes 'sum' of a parameter"),
    ],
)
def test_losses_that_do_not_call_the_model(loss, message):
    with pytest.raises(TechniqueRefused, match=message):
        capture_call(loss, Model(), X)


def test_losses_that_do_more_with_the_model():
    model = Model()
    with pytest.raises(TechniqueRefused, match="calls it again"):
        loss_given(lambda model, batch: model(batch).sum() + model(batch).sum(), model, X, X)
    with pytest.raises(TechniqueRefused, match="computes 'norm' of a parameter"):
        loss_given(lambda model, batch: model(batch).sum() + model.a.weight.norm(), model, X, X)
    assert torch.equal(model(X), Model()(X))


def test_a_loss_may_ask_what_the_model_is():
    def loss(model, batch):
        assert isinstance(model, Model)
        assert model.training
        return model(batch.to(next(model.parameters()).device), flag=model.a.in_features)

    assert capture_call(loss, Model(), X).kwargs == {"flag": 4}


def test_no_layer_for_each_stage():
    with pytest.raises(TechniqueRefused, match="3 layers, and 4 stages"):
        equal(Model(), ModelCall(args=(X,)), 4)
