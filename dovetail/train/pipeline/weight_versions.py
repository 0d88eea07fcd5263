"""Several versions of a stage's weights at once, for timetables whose weights change under way.

The parameters that a program built are the newest version: the optimizer steps them. In their modules' places sit
leaves of a chosen version. A leaf has the memory of the parameter as it was then: when the optimizer is about to step,
parameters move to new memory and leave the old one to their leaves.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from dovetail.train.weights import sites

Weights = dict[str, nn.Parameter]


class WeightVersions:
    """The weights of one stage: `parameters` by name, of which `most` versions are kept, the newest being `newest`.

    >>> layer = nn.Linear(1, 1, bias=False)
    >>> versions = WeightVersions(layer, dict(layer.named_parameters()), most=2)
    >>> versions.use(0)
    >>> def step():
    ...     with torch.no_grad():
    ...         versions.parameters["weight"].fill_(7.0)
    >>> versions.update(step)
    >>> versions.use(1), layer.weight.item()
    (None, 7.0)
    >>> versions.use(0), layer.weight.item() == 7.0
    (None, False)
    """

    def __init__(self, model: nn.Module, parameters: Mapping[str, nn.Parameter], *, most: int, newest: int = 0) -> None:
        self.parameters = dict(parameters)
        self.most, self.newest = most, newest
        own = set(parameters.values())
        names = {parameter: name for name, parameter in parameters.items()}
        self._places = [
            (module._parameters, slot, names[parameter])
            for parameter, places in sites(model).items()
            if parameter in own
            for module, slot in places
        ]
        self._leaves: dict[int, Weights] = {newest: self._fresh()}
        self._used: int | None = None

    def use(self, version: int) -> None:
        """Let the model compute with a version. One that was never there is the oldest that is."""
        version = max(version, min(self._leaves))
        if version != self._used:
            for slots, slot, name in self._places:
                slots[slot] = self._leaves[version][name]
            self._used = version

    def put_back(self) -> None:
        """Let the model have its own parameters."""
        for slots, slot, name in self._places:
            slots[slot] = self.parameters[name]
        self._used = None

    def take_gradients(self, version: int) -> dict[str, torch.Tensor]:
        """The gradients that a backward with this version gave, which are gone here then."""
        found = {}
        for name, leaf in self._leaves[max(version, min(self._leaves))].items():
            if leaf.grad is not None:
                found[name], leaf.grad = leaf.grad, None
        return found

    def update(self, step: Callable[[], None]) -> None:
        """Make a new version by `step`, which changes the parameters in place."""
        if self.most > 1:
            for parameter in self.parameters.values():
                parameter.data = parameter.data.clone()
        step()
        self.newest += 1
        self._leaves[self.newest] = self._fresh()
        for version in [each for each in self._leaves if each <= self.newest - self.most]:
            del self._leaves[version]
        self._used = None

    def older(self) -> list[Weights]:
        """The versions before the newest one, newest first."""
        return [self._leaves[version] for version in sorted(self._leaves, reverse=True)[1:]]

    def restart(self, newest: int, older: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """Go on from the parameters as they are now as version `newest`, and these before it, newest first."""
        self._leaves = {newest: self._fresh()}
        self.newest, self._used = newest, None
        for age, weights in enumerate(older[: self.most - 1], start=1):
            leaves = {name: nn.Parameter(weights[name].to(p.device, copy=True)) for name, p in self.parameters.items()}
            self._leaves[newest - age] = leaves

    def _fresh(self) -> Weights:
        # `.data` and not `detach()`: what the optimizer does to the parameter must not count as done to the leaf.
        return {name: nn.Parameter(parameter.data) for name, parameter in self.parameters.items()}
