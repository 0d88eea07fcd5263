import dataclasses

import numpy
import torch
from transformers import BatchEncoding

from dovetail.profile.batch_structure import batch_bytes, structure, tensors_in


@dataclasses.dataclass
class Pair:
    left: torch.Tensor
    right: list


class Held:
    def __init__(self):
        self.x = torch.zeros(3)
        self.itself = self


def test_bytes_of_everything_that_holds_tensors():
    assert batch_bytes(BatchEncoding({"input_ids": torch.zeros(2, 3, dtype=torch.int64)})) == 48
    assert batch_bytes(Pair(torch.zeros(2), [torch.zeros(1), None])) == 12
    assert batch_bytes((numpy.zeros(4), "text", 3)) == 32


def test_structure_tells_shapes_and_types_and_no_values():
    def batch(length=3, dtype=torch.float32, value=0.0):
        return {"x": torch.full((2, length), value, dtype=dtype), "n": 5 + value}

    assert structure(batch()) == structure(batch(value=1.0))
    assert structure(batch()) != structure(batch(length=4))
    assert structure(batch()) != structure(batch(dtype=torch.float64))
    assert structure([torch.zeros(1)] * 2) != structure((torch.zeros(1),) * 2)


def test_objects_that_hold_themselves_come_to_an_end():
    assert "float32" in repr(structure(Held()))
    assert next(tensors_in(Held(), objects=True)).shape == (3,)
    assert list(tensors_in(Held())) == []
