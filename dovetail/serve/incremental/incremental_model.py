"""A model that answers for pictures which differ from a base in a box each."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy
import torch
from torch import nn

from dovetail.serve.incremental.box_groups import group_boxes
from dovetail.serve.incremental.boxes import Reach
from dovetail.serve.incremental.patches import Patch
from dovetail.serve.incremental.spatial_graph import SpatialGraph
from dovetail.vocabulary import ProgramError

# Parts are computed where they take at most this share of the whole's multiplications: cutting and pasting take time.
_WORTH = 0.85
# So many feature maps of the input's size may be held at once, at the most; and of parts of them so many by a core's
# cache, or by what keeps an accelerator busy.
_PICTURES = 64
_PATCHES = {"cpu": 64, "cuda": 512}

Places = Sequence[tuple[int, int]]
"""The row and the column of the upper left corner of each picture's box."""


def incremental(model: nn.Module, base: torch.Tensor) -> "IncrementalModel":
    """A model that remembers what it computed for `base`, one picture (1 × channels × rows × columns), and for pictures
    that differ from it in a box computes only what the box reaches. Its answers are the model's own, up to the order of
    floating-point sums; batch norm and dropout are as in evaluation.

    Whatever can be exported by torch can be given: convolutions, pooling, norms, activations and sums of branches are
    computed in parts, and from the first operation on that is none of these, the rest is computed whole.

    >>> import torch
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    >>> base, box = torch.rand(1, 3, 32, 32), torch.zeros(2, 3, 4, 4)
    >>> answers = incremental(model, base)(box, at=[(0, 0), (8, 20)])
    >>> pasted = base.clone()
    >>> pasted[:, :, 8:12, 20:24] = 0
    >>> torch.allclose(answers[1], model(pasted)[0], atol=1e-6)
    True
    """
    return IncrementalModel(model, base)


class IncrementalModel:
    """What `incremental` gives. `share` is the part of the model's multiplications that the last call took, `part` what
    `crop` was told last, and `why` says why a model is computed whole, where it is."""

    def __init__(self, model: nn.Module, base: torch.Tensor) -> None:
        if base.dim() != 4 or len(base) != 1 or not base.is_floating_point():
            raise ProgramError(
                f"the base must be one picture of floats, 1 x channels x rows x columns; it is {tuple(base.shape)} of "
                f"{base.dtype}."
            )
        self._model, self.base = model, base
        self.share, self.part, self.why = 1.0, 1.0, ""
        training = {module for module in model.modules() if module.training}
        model.eval()
        try:
            with torch.no_grad():
                self._graph: SpatialGraph | None = SpatialGraph(model, base)
        except ProgramError as error:
            self._graph, self.why = None, str(error)
        finally:
            for module in training:
                module.training = True

    @torch.no_grad()
    def __call__(self, boxes: torch.Tensor, at: Places) -> torch.Tensor:
        """The model's answers for the base with a box put into it, for each box and its place."""
        self._check(boxes, at)
        places = numpy.array(at, dtype=int).reshape(-1, 2)
        height, width = boxes.shape[-2:]
        groups, self.share = group_boxes(self._graph, places, (height, width)) if self._graph is not None else ([], 1.0)
        if self._graph is None or self.share > _WORTH:
            self.share = 1.0
            parts = _parts(numpy.arange(len(places)), _PICTURES)
            return torch.cat([self._plainly(boxes[part], places[part]) for part in parts])
        found: torch.Tensor | None = None
        for group in groups:
            for part in _parts(group, _PATCHES.get(boxes.device.type, _PICTURES)):
                rows, columns = Reach(places[part, 0], height), Reach(places[part, 1], width)
                answers = self._graph.run(Patch(boxes[part], rows, columns))
                found = answers.new_empty(len(places), *answers.shape[1:]) if found is None else found
                found[part] = answers
        assert found is not None
        return found

    @torch.no_grad()
    def rebase(self, base: torch.Tensor) -> None:
        """Differ from another picture from now on; the model is not traced again."""
        self._check_like(base)
        self.base = base
        if self._graph is not None:
            self._graph.compute_base(base)

    def crop(self, part: float) -> None:
        """From now on compute at most this part of the rows and columns of each feature map, around the box: faster,
        and no longer exact. 1 is all of it."""
        if not 0 < part <= 1:
            raise ProgramError(f"a part must be more than 0 and at most 1, got {part}.")
        self.part = part
        if self._graph is not None:
            self._graph.crop = part

    def frame(self, picture: torch.Tensor) -> torch.Tensor:
        """The model's answer for a whole picture, computed where it differs from the base: a camera's that stands
        still."""
        self._check_like(picture)
        differs = (picture != self.base).any(dim=1)[0]
        rows, columns = (differs.any(dim=axis).nonzero().flatten() for axis in (1, 0))
        if not len(rows):
            self.share = 0.0
            return self._graph.base_output if self._graph is not None else self._model_as_it_answers(self.base)
        top, bottom, left, right = int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1
        return self(picture[:, :, top:bottom, left:right], at=[(top, left)])

    def _check_like(self, picture: torch.Tensor) -> None:
        if picture.shape != self.base.shape:
            raise ProgramError(
                f"a picture must be like the base, {tuple(self.base.shape)}; got {tuple(picture.shape)}."
            )

    def _check(self, boxes: torch.Tensor, at: Places) -> None:
        channels, height, width = self.base.shape[1:]
        if boxes.dim() != 4 or boxes.shape[1] != channels or len(boxes) != len(at) or not len(boxes):
            raise ProgramError(
                f"there must be boxes x {channels} channels x rows x columns, and a place for each; got "
                f"{tuple(boxes.shape)} and {len(at)} places."
            )
        for top, left in at:
            if not (0 <= top <= height - boxes.shape[-2] and 0 <= left <= width - boxes.shape[-1]):
                raise ProgramError(
                    f"a box of {boxes.shape[-2]} x {boxes.shape[-1]} must lie within the picture of {height} x {width};"
                    f" one is at row {top}, column {left}."
                )

    def _plainly(self, boxes: torch.Tensor, places: numpy.ndarray) -> torch.Tensor:
        pictures = self.base.repeat(len(boxes), 1, 1, 1)
        height, width = boxes.shape[-2:]
        for number, (top, left) in enumerate(places.tolist()):
            pictures[number, :, top : top + height, left : left + width] = boxes[number]
        found: torch.Tensor = self._model_as_it_answers(pictures)
        return found

    @torch.no_grad()
    def _model_as_it_answers(self, pictures: torch.Tensor) -> Any:
        training = {module for module in self._model.modules() if module.training}
        self._model.eval()
        try:
            return self._model(pictures)
        finally:
            for module in training:
                module.training = True


def _parts(numbers: numpy.ndarray, most: int) -> Iterator[numpy.ndarray]:
    yield from numpy.array_split(numbers, math.ceil(len(numbers) / most))
