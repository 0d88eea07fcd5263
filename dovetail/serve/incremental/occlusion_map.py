"""Which part of a picture decides: the model's answer with one part after another covered."""

import dataclasses

import torch
from torch import nn

from dovetail.serve.incremental.incremental_model import IncrementalModel
from dovetail.vocabulary import ProgramError

_SAMPLE = 16
_PARTS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclasses.dataclass(frozen=True, slots=True)
class OcclusionMap:
    """How much lower the score of class `target` is with each part covered, by rows and columns of parts: `drops`.
    `share` is the part of the model's multiplications that it took, and `error` how far a sample of the drops was from
    the exact ones at worst, of the largest of them: 0 where all are exact."""

    drops: torch.Tensor
    target: int
    score: float
    patch: int
    stride: int
    share: float
    error: float = 0.0


def occlusion(
    model: nn.Module | IncrementalModel,
    image: torch.Tensor,
    *,
    patch: int = 16,
    stride: int | None = None,
    fill: float = 0.0,
    target: int | None = None,
    error: float = 0.0,
) -> OcclusionMap:
    """How much the score of a class falls where a square of `patch` cells, every `stride` cells (as many, unless
    given), is covered with `fill`. The class is the one that the whole picture gets, unless `target` is given; its
    score is what the model gives, logits or probabilities. Computed by `incremental`: exactly, several times faster
    than asking the model again for each place; for many images give `incremental(model, image)` instead of the model,
    which is traced once then, and left with the base and the crop that it had. With an `error` (0.05: a twentieth of
    the largest drop) less is computed around each square, as much less as a sample of places allows.

    >>> import torch
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.Flatten(), nn.Linear(64, 1, bias=False))
    >>> with torch.no_grad():
    ...     _ = [parameter.fill_(1.0) for parameter in model.parameters()]
    >>> image = torch.zeros(1, 1, 8, 8)
    >>> image[0, 0, 5, 1] = 3.0
    >>> occlusion(model, image, patch=4).drops
    tensor([[0., 0.],
            [3., 0.]])
    """
    picture = image if image.dim() == 4 else image[None]
    stride = patch if stride is None else stride
    _check(picture, patch, stride, error)
    if not isinstance(model, IncrementalModel):
        return _map(IncrementalModel(model, picture), picture, patch, stride, fill, target, error)
    base, part = model.base, model.part
    try:
        model.rebase(picture)
        model.crop(1.0)
        return _map(model, picture, patch, stride, fill, target, error)
    finally:  # it is the caller's, who may have others ask it
        model.rebase(base)
        model.crop(part)


def _map(
    answering: IncrementalModel,
    picture: torch.Tensor,
    patch: int,
    stride: int,
    fill: float,
    target: int | None,
    error: float,
) -> OcclusionMap:
    whole = answering.frame(picture)
    if whole.dim() != 2:
        raise ProgramError(f"the model must give a score for each class, pictures x classes; it gave {whole.shape}.")
    target = int(whole[0].argmax()) if target is None else target
    if not 0 <= target < whole.shape[1]:
        raise ProgramError(f"target must be one of {whole.shape[1]} classes, from 0 on; got {target}.")
    rows, columns = (range(0, length - patch + 1, stride) for length in picture.shape[-2:])
    places = [(top, left) for top in rows for left in columns]
    covered = picture.new_full((1, picture.shape[1], patch, patch), fill).expand(len(places), -1, -1, -1)
    seen = _crop(answering, covered, places, target, error) if error else 0.0
    scores = answering(covered, at=places)[:, target]
    return OcclusionMap(
        drops=(whole[0, target] - scores).view(len(rows), len(columns)),
        target=target,
        score=float(whole[0, target]),
        patch=patch,
        stride=stride,
        share=answering.share,
        error=seen,
    )


def _crop(
    answering: IncrementalModel, covered: torch.Tensor, places: list[tuple[int, int]], target: int, error: float
) -> float:
    """Let it compute the smallest part that keeps a sample of places within an error; gives the sample's."""
    sample = places[:: max(1, len(places) // _SAMPLE)]
    exact = answering(covered[: len(sample)], at=sample)[:, target]
    largest = float((exact - float(answering.frame(answering.base)[0, target])).abs().max())
    for part in _PARTS:
        answering.crop(part)
        apart = float((answering(covered[: len(sample)], at=sample)[:, target] - exact).abs().max())
        if apart <= error * largest:
            return apart / largest if largest else 0.0
    return 0.0


def _check(picture: torch.Tensor, patch: int, stride: int, error: float) -> None:
    if picture.dim() != 4 or len(picture) != 1:
        raise ProgramError(f"the image must be one picture, channels x rows x columns; got {tuple(picture.shape)}.")
    if not 0 <= error < 1:
        raise ProgramError(f"error must be a share of the largest drop, from 0 to before 1; got {error}.")
    if not (1 <= patch <= min(picture.shape[-2:]) and stride >= 1):
        raise ProgramError(
            f"patch must be from 1 to the picture's shorter side, {min(picture.shape[-2:])}, and stride at least 1; "
            f"got {patch} and {stride}."
        )
