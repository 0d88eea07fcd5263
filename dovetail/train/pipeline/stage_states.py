"""The canonical state of a model in stages: gathered on rank 0 from those that hold its parts, and handed out again.

Of what several ranks hold (replicas, tied parameters), one tells. Tensors travel one at a time, on the host. Knows the
canonical names of `train/state.py`; knows nothing of timetables.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from dovetail.train.base import Training
from dovetail.train.pipeline.mail import Mail
from dovetail.train.ranked_session import share_state
from dovetail.train.ranks import Ranks
from dovetail.train.state import (
    TrainingState,
    _capture_optimizer,
    _mismatch,
    _restore_optimizer,
    capture,
    capture_stateful,
    pack,
    restore_stateful,
)

Tensors = dict[str, torch.Tensor]
BEFORE = "before"
"""Weights of one update ago are `before1/<parameter>`, and so on."""


class StageStates:
    """Who holds what of a model. Made while the model is whole on every rank.

    `held` names parameters and buffers, by their first names, and the ranks that hold them; the first of these tells.
    """

    def __init__(self, training: Training, held: Mapping[str, list[int]], *, ranks: Ranks) -> None:
        self._training, self._ranks = training, ranks
        # On a host: on a CUDA device messages of the pipeline itself may be under way.
        self._mail = Mail(ranks, device=torch.device("cpu"))
        self._index = capture(training, step=0, feed=None, random=None).values["model"]
        tensors = [entry[1]["__tensor__"] for entry in self._index["__dict__"] if _is_tensor(entry[1])]
        self._names = list(dict.fromkeys(name.removeprefix("model/") for name in tensors))
        self._shapes = {name: tensor.shape for name, tensor in self._live().items()}
        self._teller = {name: held.get(name, [0])[0] for name in self._names}
        self._mine = {name for name in self._names if ranks.rank in held.get(name, [0])}

    def free(self) -> None:
        """Give up the memory of parameters that are not this rank's, and of their optimizer's state."""
        names: dict[torch.Tensor, str] = {}
        for name, parameter in self._training.model.named_parameters():
            names[parameter] = name
            if name not in self._mine:
                # Its memory is given up; it keeps its shape.
                parameter.data = torch.zeros((), dtype=parameter.dtype).expand(parameter.shape)
        for optimizer in self._training.optimizers().values():
            for stepped in list(optimizer.state):
                if names.get(stepped) not in self._mine:
                    del optimizer.state[stepped]

    def gather(
        self, *, step: int, feed: Any, random: Any, extra: Mapping[str, Mapping[str, torch.Tensor]]
    ) -> TrainingState:
        """The state of the whole on rank 0; nothing of use on the others. `extra` are further tensors of this rank's
        parameters, by kind and name. Called by all."""
        tensors: Tensors = {}
        optimizers = {
            name: _capture_optimizer(name, optimizer, self._training.model, tensors)
            for name, optimizer in self._training.optimizers().items()
        }
        slots = {
            name: {m: s for m, s in packed["state"].items() if self._teller[m] == self._ranks.rank}
            for name, packed in optimizers.items()
        }
        groups = [packed["groups"] for packed in optimizers.values()] if self._ranks.leads else []
        kept = {name: tensors[name] for name in _references([slots, groups])}
        live = self._live()
        kept |= {f"model/{n}": live[n] for n in self._names if self._teller[n] == self._ranks.rank}
        kept |= {f"{k}/{n}": t for k, each in extra.items() for n, t in each.items() if self._tells(n)}
        for told, theirs in self._exchange(slots, kept):
            for name in slots:
                slots[name] |= told[name]
            kept |= theirs
        values = {
            "model": self._index,
            "optimizers": {
                n: {"groups": p["groups"], "state": _restore_order(p, slots[n])} for n, p in optimizers.items()
            },
            **capture_stateful(self._training, kept),
            "feed": pack(feed, "feed", kept),
            "random": pack(random, "random", kept),
        }
        return TrainingState(step=step, tensors=kept, values=values)

    def gather_model(self, device: torch.device) -> None:
        """Let rank 0 have the whole model, until `free`. Called by all."""
        live = self._live()
        mine = {name: live[name] for name in self._names if self._tells(name)}
        for _, theirs in self._exchange({}, mine):
            for name, tensor in theirs.items():
                if name not in self._mine:
                    _tensor_of(self._training.model, name).data = tensor.to(device)

    def load(self, state: TrainingState) -> dict[str, dict[str, torch.Tensor]]:
        """Each rank's parts of the state that rank 0 has; gives the extra tensors, by kind and name. Called by all."""

        def keep(name: str, tensor: torch.Tensor) -> torch.Tensor:
            owner = _owner(name)
            return tensor if owner is None or owner in self._mine else tensor.new_empty(0)

        state = share_state(state, self._ranks, keep=keep)
        self._load_model(state)
        for name, optimizer in self._training.optimizers().items():
            packed = state.values["optimizers"][name]
            mine = {member: slots for member, slots in packed["state"].items() if member in self._mine}
            _restore_optimizer(name, optimizer, self._training.model, {**packed, "state": mine}, state.tensors)
        restore_stateful(self._training, state.values, state.tensors)
        extra: dict[str, dict[str, torch.Tensor]] = {}
        for name, tensor in state.tensors.items():
            kind, _, of = name.partition("/")
            if kind.startswith(BEFORE) and of in self._mine:
                extra.setdefault(kind, {})[of] = tensor
        return extra

    def _load_model(self, state: TrainingState) -> None:
        if [entry[0] for entry in state.values["model"]["__dict__"]] != [e[0] for e in self._index["__dict__"]]:
            own, saved = ([entry[0] for entry in each["__dict__"]] for each in (self._index, state.values["model"]))
            raise _mismatch("model tensors", sorted(saved), sorted(own))
        with torch.no_grad():
            for name in self._names:
                tensor = state.tensors[f"model/{name}"]
                if name in self._mine:
                    if tensor.shape != self._shapes[name]:
                        raise _mismatch(f"shape of {name!r}", tuple(tensor.shape), tuple(self._shapes[name]))
                    _tensor_of(self._training.model, name).copy_(tensor)

    def _tells(self, name: str) -> bool:
        return self._teller.get(name) == self._ranks.rank

    def _live(self) -> Tensors:
        return {n: t for n, t in self._training.model.state_dict().items() if isinstance(t, torch.Tensor)}

    def _exchange(self, values: Any, tensors: Tensors) -> Iterator[tuple[Any, Tensors]]:
        """On rank 0, what each other rank has; on the others, send it."""
        if not self._ranks.leads:
            outline = [[n, list(t.shape), str(t.dtype).removeprefix("torch.")] for n, t in tensors.items()]
            self._mail.write(0, json.dumps([values, outline]))
            for tensor in tensors.values():
                if tensor.numel():
                    self._mail.post(0, tensor.detach().cpu().contiguous().view(-1))
            self._mail.settle()
            return
        for rank in range(1, self._ranks.size):
            told, outline = json.loads(self._mail.read(rank))
            theirs = {}
            for name, shape, dtype in outline:
                theirs[name] = torch.empty(shape, dtype=getattr(torch, dtype))
                if theirs[name].numel():
                    self._mail.take(rank, theirs[name].view(-1))
            yield told, theirs


def _owner(name: str) -> str | None:
    """The parameter or buffer that a tensor of the canonical state belongs to, if it belongs to one."""
    kind, _, rest = name.partition("/")
    if kind == "optimizer":  # its name, its slot or group, and the parameter
        _, slot, rest = rest.split("/", 2)
        return None if slot.startswith("group") else rest
    return rest if kind == "model" or kind.startswith(BEFORE) else None


def _is_tensor(entry: Any) -> bool:
    return isinstance(entry, dict) and "__tensor__" in entry


def _references(tree: Any) -> Iterator[str]:
    if isinstance(tree, dict):
        if "__tensor__" in tree:
            yield tree["__tensor__"]
        for value in tree.values():
            yield from _references(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _references(value)


def _restore_order(packed: Any, slots: Mapping[str, Any]) -> dict[str, Any]:
    members = (member for group in packed["groups"] for member in group["parameters"])
    return {member: slots[member] for member in members if member in slots}


def _tensor_of(model: nn.Module, name: str) -> torch.Tensor:
    path, _, last = name.rpartition(".")
    module = model.get_submodule(path)
    found = module._parameters.get(last)
    tensor = module._buffers[last] if found is None else found
    assert tensor is not None
    return tensor
