"""Parts of feature maps that differ from the base picture's, and their places in them."""

import dataclasses

import numpy
import torch
from torch.nn import functional

from dovetail.serve.incremental.boxes import Reach


@dataclasses.dataclass(frozen=True, slots=True)
class Patch:
    """What changed of a feature map, for each picture at a place of its own; elsewhere it is the base's."""

    values: torch.Tensor
    rows: Reach
    columns: Reach


Margins = tuple[int, int, int, int]
"""Cells left, right, above and below of a map, as `torch.nn.functional.pad` counts them."""


class BaseMap:
    """A feature map of the base picture, with as much padding as those who look at it need."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values
        self._padded: dict[tuple[Margins, float], torch.Tensor] = {}

    def pad(self, margins: Margins, value: float) -> torch.Tensor:
        """The map within margins of one value; made once."""
        if not any(margins):
            return self.values
        key = (margins, value)
        if key not in self._padded:
            self._padded[key] = functional.pad(self.values, margins, value=value)
        return self._padded[key]

    def cut(
        self,
        patch: Patch | None,
        rows: Reach,
        columns: Reach,
        *,
        pictures: int,
        margins: Margins = (0, 0, 0, 0),
        value: float = 0.0,
    ) -> torch.Tensor:
        """The same box of each picture's map, which is this one with the patch in it. Rows and columns are counted from
        the first of the margins."""
        base = self.pad(margins, value)[0]
        if patch is None:
            return _cut_all(base, rows, columns, pictures)
        tops = patch.rows.starts + margins[2] - rows.starts
        lefts = patch.columns.starts + margins[0] - columns.starts
        if _is_one(tops) and _is_one(lefts):
            region = _cut_all(base, rows, columns, pictures)
            return _paste_patch(region, patch.values, int(tops[0]), int(lefts[0]))
        return _paste_patches(base, rows, columns, patch, tops, lefts)


def _is_one(places: numpy.ndarray) -> bool:
    return bool((places == places[0]).all())


def _cut_all(base: torch.Tensor, rows: Reach, columns: Reach, pictures: int) -> torch.Tensor:
    """A box of the base for each picture, which may be the base's own memory."""
    if _is_one(rows.starts) and _is_one(columns.starts):
        top, left = int(rows.starts[0]), int(columns.starts[0])
        one = base[:, top : top + rows.size, left : left + columns.size]
        return one.expand(pictures, *one.shape)
    if base.device.type == "cpu":  # rows are copied faster than cells are looked up
        places = zip(rows.starts.tolist(), columns.starts.tolist(), strict=True)
        return torch.stack([base[:, top : top + rows.size, left : left + columns.size] for top, left in places])
    windows = base.unfold(1, rows.size, 1).unfold(2, columns.size, 1)
    first, second = (torch.as_tensor(each.starts, device=base.device) for each in (rows, columns))
    return windows[:, first, second].transpose(0, 1)


def _paste_patch(region: torch.Tensor, patch: torch.Tensor, top: int, left: int) -> torch.Tensor:
    """The region of each picture, with as much of its patch as lies within."""
    height, width = patch.shape[-2:]
    above, before = max(0, -top), max(0, -left)
    below, behind = min(height, region.shape[-2] - top), min(width, region.shape[-1] - left)
    if (above, before, below, behind) == (0, 0, *region.shape[-2:]):
        return patch
    region = region.clone(memory_format=torch.contiguous_format)  # it may be the base's own memory
    if below > above and behind > before:
        region[..., top + above : top + below, left + before : left + behind] = patch[..., above:below, before:behind]
    return region


def _paste_patches(
    base: torch.Tensor, rows: Reach, columns: Reach, patch: Patch, tops: numpy.ndarray, lefts: numpy.ndarray
) -> torch.Tensor:
    """The same where patches lie elsewhere in each region: all are put into larger ones, of which that part is taken
    that was asked for."""
    pictures = len(tops)
    height, width = patch.values.shape[-2:]
    above, before = (max(0, -int(each.min())) for each in (tops, lefts))
    below = max(0, int(tops.max()) + height - rows.size)
    behind = max(0, int(lefts.max()) + width - columns.size)
    if above or before or below or behind:
        canvas = base.new_empty(pictures, base.shape[0], above + rows.size + below, before + columns.size + behind)
        inner = canvas[..., above : above + rows.size, before : before + columns.size]
        inner.copy_(_cut_all(base, rows, columns, pictures))
    else:
        canvas = inner = _cut_all(base, rows, columns, pictures).clone(memory_format=torch.contiguous_format)
    if base.device.type == "cpu":
        for number, (top, left) in enumerate(zip((tops + above).tolist(), (lefts + before).tolist(), strict=True)):
            canvas[number, :, top : top + height, left : left + width] = patch.values[number]
        return inner
    device = base.device
    picture = torch.arange(pictures, device=device).view(-1, 1, 1)
    row = torch.as_tensor(tops + above, device=device).view(-1, 1, 1) + torch.arange(height, device=device).view(
        1, -1, 1
    )
    column = torch.as_tensor(lefts + before, device=device).view(-1, 1, 1) + torch.arange(width, device=device)
    canvas.permute(0, 2, 3, 1)[picture, row, column] = patch.values.permute(0, 2, 3, 1)
    return inner
