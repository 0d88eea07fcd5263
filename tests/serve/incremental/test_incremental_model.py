"""Computed in parts, a network gives what it gives as a whole."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import dovetail as dt
from dovetail.vocabulary import ProgramError


class Residual(nn.Module):
    """A block as in residual networks, with a branch of its own where the size changes."""

    def __init__(self, channels, out, stride):
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(out)
        self.second = nn.Conv2d(out, out, 3, 1, 1)
        self.short = nn.Conv2d(channels, out, 1, stride) if stride > 1 or channels != out else nn.Identity()

    def forward(self, x):
        return functional.relu(self.second(functional.relu(self.norm(self.first(x)))) + self.short(x), inplace=True)


class Joined(nn.Module):
    """Two branches that look differently far, side by side."""

    def __init__(self, channels):
        super().__init__()
        self.near, self.far = nn.Conv2d(channels, 3, 1), nn.Conv2d(channels, 2, 5, padding=4, dilation=2)

    def forward(self, x):
        return torch.cat([self.near(x), self.far(x)], dim=1)


class Scaled(nn.Module):
    """Channels weighed by what the whole picture holds: from here on everything changes."""

    def __init__(self, channels):
        super().__init__()
        self.weigh = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        return x * torch.sigmoid(self.weigh(x.mean((2, 3), keepdim=True)))


@st.composite
def networks(draw):
    """A network over 24 x 20 cells of random layers, in evaluation."""
    layers, channels = [], 2
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["conv", "pool", "mean", "residual", "joined", "relu", "norm", "scaled"]))
        if kind == "conv":
            size, groups = draw(st.sampled_from([1, 3, 5])), draw(st.sampled_from([1, channels]))
            layers.append(
                nn.Conv2d(channels, 2 * channels, size, draw(st.integers(1, 2)), draw(st.integers(0, 2)), groups=groups)
            )
            channels *= 2
        elif kind == "pool":
            layers.append(nn.MaxPool2d(3, 2, draw(st.integers(0, 1)), ceil_mode=draw(st.booleans())))
        elif kind == "mean":
            layers.append(nn.AvgPool2d(2, 1, draw(st.integers(0, 1)), count_include_pad=draw(st.booleans())))
        elif kind == "residual":
            out = draw(st.sampled_from([channels, 3]))
            layers.append(Residual(channels, out, draw(st.integers(1, 2))))
            channels = out
        elif kind == "joined":
            layers.append(Joined(channels))
            channels = 5
        elif kind == "norm":
            layers.append(nn.BatchNorm2d(channels))
        else:
            layers.append(nn.ReLU(inplace=True) if kind == "relu" else Scaled(channels))
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(), nn.Linear(4 * channels, 3))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
    return model.double().eval()


def pasted(base, boxes, places):
    pictures = base.repeat(len(boxes), 1, 1, 1)
    height, width = boxes.shape[-2:]
    for picture, box, (top, left) in zip(pictures, boxes, places, strict=True):
        picture[:, top : top + height, left : left + width] = box
    return pictures


@settings(max_examples=25, deadline=None)
@given(networks(), st.data())
def test_parts_give_what_the_whole_gives(model, data):
    base = torch.randn(1, 2, 24, 20, dtype=torch.float64)
    try:
        model(base)
    except RuntimeError:
        return  # too many layers for so few cells
    height, width = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 7))
    place = st.tuples(st.integers(0, 24 - height), st.integers(0, 20 - width))
    places = data.draw(st.lists(place, min_size=1, max_size=6))
    boxes = torch.randn(len(places), 2, height, width, dtype=torch.float64)
    answering = dt.incremental(model, base)
    assert answering.why == ""
    found = answering(boxes, at=places)
    with torch.no_grad():
        expected = model(pasted(base, boxes, places))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert torch.equal(answering.base, base)
    assert torch.allclose(answering.frame(base), model(base))


def chain():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))


def test_a_frame_is_computed_where_it_differs():
    model, base = chain().eval(), torch.rand(1, 3, 64, 64)
    answering = dt.incremental(model, base)
    frame = base.clone()
    frame[:, :, 10:14, 50:53] += 1
    torch.testing.assert_close(answering.frame(frame), model(frame), rtol=1e-5, atol=1e-6)
    assert 0 < answering.share < 0.05
    answering.frame(base)
    assert answering.share == 0


def test_another_base_needs_no_other_trace():
    model, first, second = chain().eval(), torch.rand(1, 3, 32, 32), torch.rand(1, 3, 32, 32)
    answering = dt.incremental(model, first)
    answering.rebase(second)
    box = torch.rand(1, 3, 4, 4)
    expected = model(pasted(second, box, [(9, 9)]))
    torch.testing.assert_close(answering(box, at=[(9, 9)]), expected, rtol=1e-5, atol=1e-6)
    drops = [dt.occlusion(each, second, patch=8).drops for each in (model, answering)]
    assert torch.equal(*drops)


def test_a_box_that_reaches_everything_is_computed_whole():
    model, base = chain().eval(), torch.rand(1, 3, 16, 16)
    answering = dt.incremental(model, base)
    box = torch.rand(1, 3, 16, 15)
    torch.testing.assert_close(answering(box, at=[(0, 1)]), model(pasted(base, box, [(0, 1)])))
    assert answering.share == 1


def test_a_model_is_left_as_it_was_and_answers_as_in_evaluation():
    model = nn.Sequential(chain(), nn.Dropout(0.9)).train()
    model[0][1].eval()
    answering = dt.incremental(model, torch.rand(1, 3, 16, 16))
    first, second = (answering(torch.zeros(1, 3, 2, 2), at=[(3, 3)]) for _ in range(2))
    assert torch.equal(first, second)
    assert model.training
    assert model[1].training
    assert not model[0][1].training


def test_what_cannot_be_traced_is_computed_whole_and_says_why():
    class Deciding(nn.Module):
        def forward(self, x):
            return x.mean((2, 3)) if float(x.sum()) > 0 else x.amax((2, 3))

    model, base = Deciding(), torch.rand(1, 3, 8, 8)
    answering = dt.incremental(model, base)
    assert "must be traced" in answering.why
    box = torch.full((1, 3, 2, 2), -100.0)
    assert torch.equal(answering(box, at=[(1, 1)]), model(pasted(base, box, [(1, 1)])))


@pytest.mark.parametrize(
    ("boxes", "places", "match"),
    [
        ((1, 3, 4, 4), [(6, 0)], r"a box of 4 x 4 must lie within the picture of 8 x 8; one is at row 6, column 0"),
        ((1, 2, 4, 4), [(0, 0)], r"boxes x 3 channels"),
        ((2, 3, 4, 4), [(0, 0)], r"and a place for each; got \(2, 3, 4, 4\) and 1 places"),
    ],
)
def test_what_is_no_box_is_refused(boxes, places, match):
    answering = dt.incremental(chain(), torch.rand(1, 3, 8, 8))
    with pytest.raises(ProgramError, match=match):
        answering(torch.zeros(boxes), at=places)
    with pytest.raises(ProgramError, match=r"a picture must be like the base, \(1, 3, 8, 8\)"):
        answering.frame(torch.zeros(1, 3, 8, 9))
    with pytest.raises(ProgramError, match="the base must be one picture of floats"):
        dt.incremental(chain(), torch.zeros(2, 3, 8, 8))


def test_a_transformers_model_as_it_comes():
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=5)

    class Logits(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = transformers.ResNetForImageClassification(config)

        def forward(self, x):
            return self.model(x).logits

    model, base = Logits().eval(), torch.rand(1, 3, 96, 96)
    answering = dt.incremental(model, base)
    boxes, places = torch.zeros(3, 3, 8, 8), [(0, 0), (40, 88), (17, 31)]
    with torch.no_grad():
        expected = model(pasted(base, boxes, places))
    torch.testing.assert_close(answering(boxes, at=places), expected, rtol=1e-4, atol=1e-5)
    assert answering.why == ""
    assert answering.share < 0.8
