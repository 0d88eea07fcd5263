"""Maps of which part of a picture decides."""

import pytest
import torch
from torch import nn

import dovetail as dt
from dovetail.vocabulary import ProgramError
from tests.serve.incremental.test_incremental_model import chain, pasted


def test_drops_are_those_of_covered_pictures():
    model, image = chain().eval(), torch.rand(3, 40, 32)
    found = dt.occlusion(model, image, patch=8, stride=4, fill=0.5)
    assert found.drops.shape == (9, 7)
    places = [(top, left) for top in range(0, 33, 4) for left in range(0, 25, 4)]
    covered = pasted(image[None], torch.full((len(places), 3, 8, 8), 0.5), places)
    with torch.no_grad():
        whole, scores = model(image[None])[0], model(covered)
    assert found.target == int(whole.argmax())
    assert found.score == pytest.approx(float(whole.max()))
    torch.testing.assert_close(
        found.drops.flatten(), whole[found.target] - scores[:, found.target], rtol=1e-4, atol=1e-6
    )
    assert found.error == 0


def test_an_error_that_is_asked_for_is_kept_and_buys_work():
    torch.manual_seed(1)
    layers = [part for n in range(6) for part in (nn.Conv2d(3 if not n else 8, 8, 5, padding=2), nn.ReLU())]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)).eval()
    image = torch.rand(3, 48, 48)
    exact = dt.occlusion(model, image, patch=8)
    near = dt.occlusion(model, image, patch=8, error=0.2)
    assert near.share < exact.share
    assert 0 < near.error <= 0.2
    assert float((near.drops - exact.drops).abs().max()) <= 0.3 * float(exact.drops.abs().max())


def test_a_traced_model_is_left_as_it_was():
    torch.manual_seed(1)
    layers = [part for n in range(6) for part in (nn.Conv2d(3 if not n else 8, 8, 5, padding=2), nn.ReLU())]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)).eval()
    first, second, box = torch.rand(1, 3, 48, 48), torch.rand(1, 3, 48, 48), torch.zeros(1, 3, 8, 8)
    traced = dt.incremental(model, first)
    dt.occlusion(traced, second, patch=8, error=0.2)
    with torch.no_grad():
        torch.testing.assert_close(traced(box, at=[(20, 20)]), model(pasted(first, box, [(20, 20)])))
    traced.crop(0.5)
    with pytest.raises(ProgramError, match="target must be one of 4"):
        dt.occlusion(traced, second, patch=8, target=4)
    assert traced.part == 0.5
    assert traced.base is first


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"patch": 9}, r"patch must be from 1 to the picture's shorter side, 8"),
        ({"patch": 2, "stride": 0}, "stride at least 1; got 2 and 0"),
        ({"patch": 2, "target": 4}, "target must be one of 4 classes, from 0 on; got 4"),
        ({"patch": 2, "error": 1.0}, "error must be a share of the largest drop"),
    ],
)
def test_bad_questions_are_refused(options, match):
    with pytest.raises(ProgramError, match=match):
        dt.occlusion(chain(), torch.rand(3, 8, 12), **options)
    with pytest.raises(ProgramError, match="the image must be one picture"):
        dt.occlusion(chain(), torch.rand(2, 3, 8, 8), patch=2)
    with pytest.raises(ProgramError, match="a score for each class"):
        dt.occlusion(nn.Conv2d(3, 3, 1), torch.rand(3, 8, 8), patch=2)
