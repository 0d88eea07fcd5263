"""Programs drawn at random, trained by every technique that does not refuse them, against a bare PyTorch loop.

Each program (layers, tied weights, dropout, batch norm, odd batches, schedules, clipping, accumulation, steps of its
own with state) is stopped after a few steps, saved, and goes on with another technique, several times. Losses and
weights must be those of a loop that shares no code with Dovetail: bit for bit where all techniques on the way promise
that, else as close as that loop is to itself when its first weights change in their last bits. A technique may refuse
a program if it says why; the plain one then goes on in its place.
`python bench/random_programs.py [--programs N] [--long] [--check] [--quick]`
"""

import argparse
import collections
import contextlib
import dataclasses
import functools
import hashlib
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from reporting import Bar, finish
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from dovetail.planning.techniques import spec_of
from dovetail.testing import programs
from dovetail.testing.ranks import Followers
from dovetail.train import (
    Scheduler,
    SessionMember,
    Training,
    TrainingSession,
    TrainingState,
    checkpoint,
    load_technique,
)
from dovetail.vocabulary import ProgramError, TechniqueRefused, TrainingError

CPU, WORDS, ROWS = torch.device("cpu"), 11, 6
ALONE, GANGS, RANKED = ("resident", "spill"), ("interleave", "beside", "fuse"), ("replicate", "shard", "pipeline")
LAYERS = {
    "vectors": ("linear", "gelu", "relu", "dropout", "noise", "layer norm", "batch norm", "residual"),
    "words": ("linear", "gelu", "dropout", "layer norm", "residual", "attention", "recurrent"),
    "pictures": ("conv", "relu", "dropout 2d", "batch norm 2d", "group norm"),
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.02),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.02, momentum=0.9, weight_decay=1e-3),
    "nesterov": lambda groups: torch.optim.SGD(groups, lr=0.02, momentum=0.8, nesterov=True),
    "adam": lambda groups: torch.optim.Adam(groups, lr=1e-3),
    "amsgrad": lambda groups: torch.optim.Adam(groups, lr=1e-3, amsgrad=True),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.1),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=1e-3),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=1e-2),
}
_RATES = torch.optim.lr_scheduler
SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "none": lambda optimizer: None,
    "step": lambda optimizer: _RATES.StepLR(optimizer, 3, gamma=0.5),
    "cosine": lambda optimizer: _RATES.CosineAnnealingLR(optimizer, T_max=7),
    "warm-up": lambda optimizer: _RATES.LinearLR(optimizer, total_iters=4),
    "one cycle": lambda optimizer: _RATES.OneCycleLR(optimizer, max_lr=0.01, total_steps=50, cycle_momentum=False),
    "by epoch": lambda optimizer: _RATES.ExponentialLR(optimizer, 0.7),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """A program in a few words, so that one that fails can be read."""

    kind: str
    layers: tuple[str, ...]
    width: int
    tied: bool
    frozen: bool
    optimizer: str
    groups: int
    schedule: str
    clip: float | None
    accumulate: int
    batches: str
    precision: str
    how: str


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    """Any program."""
    kind = draw(st.sampled_from(sorted(LAYERS)))
    how = draw(st.sampled_from(("loss", "loss", "loss", "loss", "step", "state", "average", "undeclared")))
    batches = draw(st.sampled_from(("list", "odd", "loader", "counting")))
    by_epoch = how != "step" and batches != "counting"
    return Recipe(
        kind=kind,
        layers=tuple(draw(st.lists(st.sampled_from(LAYERS[kind]), min_size=1, max_size=5))),
        width=draw(st.sampled_from((4, 8))),
        tied=kind == "words" and draw(st.booleans()),
        frozen=draw(st.booleans()),
        optimizer=draw(st.sampled_from(sorted(OPTIMIZERS))),
        groups=draw(st.integers(1, 2)),
        schedule=draw(st.sampled_from(sorted(SCHEDULES if by_epoch else SCHEDULES.keys() - {"by epoch"}))),
        clip=draw(st.sampled_from((None, 0.1, 1.0))),
        accumulate=1 if how == "step" else draw(st.integers(1, 3)),
        batches=batches,
        precision=draw(st.sampled_from(("fp32", "fp32", "fp32", "bf16"))),
        how=how,
    )


def ways(techniques: tuple[str, ...]) -> st.SearchStrategy[list[tuple[str, int]]]:
    """With which techniques, one after another, and how many steps with each."""
    return st.lists(st.tuples(st.sampled_from(techniques), st.integers(1, 4)), min_size=1, max_size=4)


# The program, in plain PyTorch


class Noise(nn.Module):
    """A module of the user's that draws."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """With a little noise while training."""
        return x + 0.1 * torch.randn_like(x) if self.training else x


class Residual(nn.Module):
    """A block of two layers and a way around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.outer, self.drop = nn.Linear(width, width), nn.Linear(width, width), nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Both; the dropout is called twice."""
        return x + self.drop(self.outer(self.drop(torch.tanh(self.inner(x)))))


class Attention(nn.Module):
    """Causal attention with two heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        # Without a bias: a key's bias has no gradient but for rounding, which Adam makes as large as any.
        self.inner, self.outer = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mix earlier words."""
        parts = self.inner(x).unflatten(-1, (3, 2, -1)).transpose(1, 3).unbind(2)
        return x + self.outer(
            functional.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2)
        )


class Recurrent(nn.Module):
    """A recurrent layer, of whose outputs the next layer sees all."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cells = nn.GRU(width, width, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From word to word."""
        found: torch.Tensor = self.cells(x)[0]
        return found


def layer(name: str, width: int, *, before_norm: bool) -> nn.Module:
    """A layer by name that keeps shapes. A norm takes what a bias before it gives, so that there is none."""
    makers: dict[str, Callable[[], nn.Module]] = {
        "linear": lambda: nn.Linear(width, width, bias=not before_norm),
        "gelu": nn.GELU,
        "relu": nn.ReLU,
        "dropout": lambda: nn.Dropout(0.3),
        "dropout 2d": lambda: nn.Dropout2d(0.2),
        "noise": Noise,
        "layer norm": lambda: nn.LayerNorm(width),
        "batch norm": lambda: nn.BatchNorm1d(width),
        "batch norm 2d": lambda: nn.BatchNorm2d(width),
        "group norm": lambda: nn.GroupNorm(2, width),
        "residual": lambda: Residual(width),
        "attention": lambda: Attention(width),
        "recurrent": lambda: Recurrent(width),
        "conv": lambda: nn.Conv2d(width, width, 3, padding=1, bias=not before_norm),
    }
    return makers[name]()


class Model(nn.Module):
    """A stem, the layers drawn, and a head that may be the stem's own weights."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        width, words, pictures = recipe.width, recipe.kind == "words", recipe.kind == "pictures"
        norms = [name.startswith(("batch norm", "group norm")) for name in (*recipe.layers[1:], "")]
        first = bool(recipe.layers) and recipe.layers[0].startswith(("batch norm", "group norm"))
        if words:
            self.stem: nn.Module = nn.Embedding(WORDS, width)
        else:
            self.stem = nn.Conv2d(2, width, 3, bias=not first) if pictures else nn.Linear(5, width, bias=not first)
        pairs = zip(recipe.layers, norms, strict=True)
        self.body = nn.Sequential(*(layer(name, width, before_norm=norm) for name, norm in pairs))
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()) if pictures else nn.Identity()
        self.head = nn.Linear(width, WORDS, bias=not words)
        if recipe.tied:
            self.head.weight = self.stem.weight  # type: ignore[assignment]
        if recipe.frozen:
            self.body[0].requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        found: torch.Tensor = self.head(self.pool(self.body(self.stem(x))))
        return found


class Count:
    """A counter that can be saved."""

    def __init__(self) -> None:
        self.value = 0

    def state_dict(self) -> dict[str, int]:
        """Its value."""
        return {"value": self.value}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from there."""
        self.value = state["value"]


@dataclasses.dataclass
class Parts:
    """A program's objects, as anybody makes them."""

    model: nn.Module
    batches: Any
    optimizer: torch.optim.Optimizer
    schedule: Any
    loss: Callable[[nn.Module, Any], torch.Tensor]
    count: Count
    average: nn.Module | None


def entropy(model: nn.Module, batch: Any, *, words: bool) -> torch.Tensor:
    """The loss of all programs."""
    inputs, targets = (batch[:, :-1], batch[:, 1:]) if words else batch
    return functional.cross_entropy(model(inputs).flatten(0, -2).float(), targets.flatten())


def make(recipe: Recipe) -> Parts:
    """Build a program; draws from the global generators, as users' programs do."""
    model, count = Model(recipe), Count()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    halves: Any = [{"params": parameters[0::2]}, {"params": parameters[1::2], "weight_decay": 1e-2}]
    optimizer = OPTIMIZERS[recipe.optimizer](parameters if recipe.groups == 1 else halves)

    plain = functools.partial(entropy, words=recipe.kind == "words")

    def counting(model: nn.Module, batch: Any) -> torch.Tensor:
        count.value += 1
        return plain(model, batch) * (1 + count.value / 10)

    return Parts(
        model=model,
        batches=batches_of(recipe),
        optimizer=optimizer,
        schedule=SCHEDULES[recipe.schedule](optimizer),
        loss=counting if recipe.how in ("state", "undeclared") else plain,
        count=count,
        average=torch.optim.swa_utils.AveragedModel(model) if recipe.how == "average" else None,
    )


def batches_of(recipe: Recipe) -> Any:
    """Batches of one kind or another, of which the last may be small."""
    shape = {"vectors": (5,), "pictures": (2, 5, 5), "words": (8,)}[recipe.kind]

    def examples(rows: int) -> Any:
        if recipe.kind == "words":
            return torch.randint(WORDS, (rows, *shape))
        return torch.randn(rows, *shape), torch.randint(WORDS, (rows,))

    if recipe.batches == "loader":
        found = examples(4 * ROWS + 2)
        data = found if recipe.kind == "words" else TensorDataset(*found)
        return DataLoader(data, batch_size=ROWS, shuffle=True)
    made = [examples(ROWS - 2 * (recipe.batches == "odd" and number == 2)) for number in range(5)]
    return programs.Counting(made) if recipe.batches == "counting" else made


def own_step(parts: Parts, recipe: Recipe, batch: Any) -> torch.Tensor:
    """The step that programs with one of their own take."""
    parts.optimizer.zero_grad()
    loss = parts.loss(parts.model, batch)
    loss.backward()
    if recipe.clip is not None:
        nn.utils.clip_grad_norm_(parts.model.parameters(), recipe.clip)
    parts.optimizer.step()
    if parts.schedule is not None:
        parts.schedule.step()
    return loss.detach()


def training_of(recipe: Recipe) -> Training:
    """The program as Dovetail takes it."""
    parts = make(recipe)
    shared: dict[str, Any] = {"model": parts.model, "batches": parts.batches, "optimizer": parts.optimizer}
    shared["precision"] = recipe.precision
    if recipe.how == "step":
        schedules = {} if parts.schedule is None else {"rate": parts.schedule}
        return Training(
            **shared, step=lambda training, batch: {"loss": own_step(parts, recipe, batch)}, schedules=schedules
        )
    by_epoch = recipe.schedule == "by epoch"
    shared["schedule"] = Scheduler(parts.schedule, every="epoch") if by_epoch else parts.schedule
    if recipe.how == "state":
        shared["state"] = {"count": parts.count}
    if (average := parts.average) is not None:
        shared |= {
            "state": {"average": average},
            "callbacks": [lambda training, step: average.update_parameters(training.model)],
        }
    return Training(**shared, loss=parts.loss, clip_norm=recipe.clip, accumulate=recipe.accumulate)


# The loop that shares no code with Dovetail. Which seed a draw has is a promise ("keyed-1"), written down here again.


def key(*words: int | str) -> int:
    """A seed from words."""
    digest = hashlib.blake2b("\0".join(map(str, words)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") // 2


def mix(seed: int, number: int) -> int:
    """A seed from a seed and a number: splitmix64."""
    z = (seed + 0x9E3779B97F4A7C15 * (number + 1)) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return (z ^ (z >> 31)) // 2


class Draws:
    """What a loop draws: modules that draw begin anew from their names, microbatches and batches from their numbers."""

    def __init__(self, model: nn.Module) -> None:
        self.base, self.calls = 0, collections.Counter[str]()
        for name, module in model.named_modules():
            if isinstance(module, nn.Dropout | nn.Dropout2d | Noise):
                module.register_forward_pre_hook(functools.partial(self._enter, name))

    def _enter(self, name: str, *_: Any) -> None:
        torch.manual_seed(mix(self.base ^ key(name), self.calls[name]))
        self.calls[name] += 1

    def begin(self, step: int, microbatch: int) -> None:
        """From here on draws belong to this microbatch."""
        self.base = mix(mix(key(0, "steps"), step), microbatch)
        self.calls.clear()
        torch.manual_seed(self.base)


def seed_all(seed: int) -> None:
    """Python, NumPy and torch."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def taken(batches: Any, count: int) -> Iterator[tuple[list[Any], bool]]:
    """So many batches at a time for ever, and whether these end their epoch; what is left of one is dropped."""
    for epoch in range(10**9):
        seed = key(0, "epoch", epoch)
        seed_all(seed)
        passed, some = iter(batches), []
        for index in range(10**9):
            torch.manual_seed(mix(seed, index))
            try:
                some.append(next(passed))
            except StopIteration:
                break
            if len(some) == count:
                last = hasattr(batches, "__len__") and index + count >= len(batches)
                yield some, last
                some = []


def bare(recipe: Recipe, steps: int, *, nudge: float = 0.0) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The losses and the last weights of a plain loop."""
    seed_all(key(0, "build"))
    parts = make(recipe)
    if nudge:
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in parts.model.parameters():
                parameter.mul_(1 + nudge * (2 * torch.rand(parameter.shape, generator=generator) - 1))
    draws, losses = Draws(parts.model), []
    parts.model.train()
    feed = taken(parts.batches, recipe.accumulate)
    for step in range(steps):
        batches, ends_epoch = next(feed)
        draws.begin(step, 0)
        losses.append(float(_bare_step(recipe, parts, draws, step, batches, ends_epoch)))
    return losses, {name: tensor.detach().clone() for name, tensor in parts.model.state_dict().items()}


def _bare_step(
    recipe: Recipe, parts: Parts, draws: Draws, step: int, batches: list[Any], ends_epoch: bool
) -> torch.Tensor:
    half = torch.autocast("cpu", dtype=torch.bfloat16) if recipe.precision == "bf16" else contextlib.nullcontext()
    if recipe.how == "step":
        with half:
            return own_step(parts, recipe, batches[0])
    found = []
    for number, batch in enumerate(batches):
        if number:
            draws.begin(step, number)
        with half:
            loss = parts.loss(parts.model, batch)
        (loss / len(batches)).backward()
        found.append(loss.detach())
    if recipe.clip is not None:
        nn.utils.clip_grad_norm_(parts.model.parameters(), recipe.clip)
    parts.optimizer.step()
    if parts.schedule is not None and (recipe.schedule != "by epoch" or ends_epoch):
        parts.schedule.step()
    if parts.average is not None:
        parts.average.update_parameters(parts.model)
    parts.optimizer.zero_grad()
    parts.model.zero_grad()
    return torch.stack(found).mean()


# Ours, from technique to technique


@dataclasses.dataclass
class Travel:
    """What became of a program on its way."""

    losses: list[float] = dataclasses.field(default_factory=list)
    state: TrainingState | None = None
    used: list[str] = dataclasses.field(default_factory=list)
    refusals: list[str] = dataclasses.field(default_factory=list)


def opened(name: str, recipe: Recipe, followers: Followers | None) -> TrainingSession:
    """A session whose first member is the program, freshly built; in a gang it has company."""
    technique, build = load_technique(name), functools.partial(training_of, recipe)
    members = [programs.fresh(build, seed=seed) for seed in range(2 if name in GANGS else 1)]
    if reason := technique.refuse(members):
        assert reason.strip(), f"{name} must say why it refuses"
        raise TechniqueRefused(reason)
    if name not in RANKED:
        return technique.open(members, device=CPU, threads=1, knobs=_knobs(name, members))
    assert followers is not None
    try:
        return followers.session(technique, members[0], build)  # type: ignore[arg-type]
    except TechniqueRefused:
        followers.errors()  # the others have refused it, too
        raise


def _knobs(name: str, members: list[SessionMember]) -> dict[str, Any]:
    if name != "spill":
        return {}
    size = sum(4 * parameter.numel() for parameter in members[0].training.model.parameters())
    return {"device_bytes": 3 * size + (64 << 10), "depth": 1}


def travel(recipe: Recipe, way: list[tuple[str, int]], folder: Path, followers: Followers | None = None) -> Travel:
    """Train the program along the way, through a checkpoint at each change. Raises what a whole program raises."""
    found = Travel()
    for number, (name, steps) in enumerate(way):
        try:
            _stretch(found, name, recipe, steps, folder / str(number), followers)
        except (TechniqueRefused, TrainingError) as error:
            found.refusals.append(f"{name}: {error}")
            _stretch(found, "resident", recipe, steps, folder / f"{number}-resident", None)
    return found


def _stretch(found: Travel, name: str, recipe: Recipe, steps: int, folder: Path, followers: Followers | None) -> None:
    session = opened(name, recipe, followers)
    try:
        if found.state is not None:
            session.load(found.state)
        losses = [float(session.advance([0])[0].loss) for _ in range(steps)]
        path, _ = checkpoint.write(folder, session.state(), task="random", attempt=1)
    finally:
        session.close()
    found.state = checkpoint.read(path)
    found.losses += losses
    found.used.append(name)


def differences(recipe: Recipe, found: Travel) -> str:
    """In what a travelled program differs from the bare loop more than its techniques allow; empty where in nothing."""
    losses, weights = bare(recipe, len(found.losses))
    assert found.state is not None
    ours = {name: found.state.tensors[f"model/{name}"] for name in weights if f"model/{name}" in found.state.tensors}
    if missing := [name for name in weights if name not in ours and not (recipe.tied and name == "head.weight")]:
        return f"the checkpoint has no {', '.join(missing)}"
    if not any(spec_of(name).rounds({}) for name in found.used):
        wrong = [name for name, tensor in ours.items() if not torch.equal(tensor, weights[name])]
        return (
            "" if found.losses == losses and not wrong else f"bits of {wrong or 'losses'}: {found.losses} not {losses}"
        )
    # what rounding may do is what a nudge of one unit in the last place of the numbers computed with does, and no less
    # than the least: bf16 has 8 bits, fp32 24
    nudge, times, least = (2.0**-9, 10, 2.0**-5) if recipe.precision == "bf16" else (2.0**-22, 100, 1e-5)
    again, others = bare(recipe, len(found.losses), nudge=nudge)
    allowed = max(
        [least, *(times * apart(*pair) for pair in zip(losses, again, strict=True))]
        + [times * apart(weights[each], others[each]) for each in ours]
    )
    most = max([*map(apart, found.losses, losses), *(apart(ours[each], weights[each]) for each in ours)])
    return "" if most <= allowed else f"apart by {most:.2g}, {allowed:.2g} allowed: {found.losses} not {losses}"


def apart(one: Any, other: Any) -> float:
    """How far apart, as a share of the norm."""
    one, other = torch.as_tensor(one).double(), torch.as_tensor(other).double()
    return float((one - other).norm() / (other.norm() + 1e-9))


def verdict(
    recipe: Recipe, way: list[tuple[str, int]], followers: Followers | None = None
) -> tuple[str, Travel | None]:
    """What is wrong with a program's travel, and the travel where there was one."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = travel(recipe, way, Path(folder), followers)
        except ProgramError as error:
            expected = recipe.how == "undeclared" and "must be declared" in str(error)
            return ("" if expected else f"refused altogether: {error}"), None
    if recipe.how == "undeclared":
        return "a variable that no checkpoint has was let pass", found
    return differences(recipe, found), found


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--programs", type=int, default=2000, metavar="N")
    arguments.add_argument("--long", action="store_true", help="ten times as many")
    arguments.add_argument("--check", action="store_true", help="end with 1 where a program differs")
    arguments.add_argument("--quick", action="store_true", help="30 programs; writes nothing")
    chosen = arguments.parse_args()
    count = 30 if chosen.quick else chosen.programs * (10 if chosen.long else 1)
    tally: collections.Counter[str] = collections.Counter()
    reasons: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    torch.set_num_threads(1)
    with Followers(size=2) as followers:

        @settings(
            max_examples=count,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(recipe=recipes(), way=ways((*ALONE, *GANGS, *RANKED)))
        def each(recipe: Recipe, way: list[tuple[str, int]]) -> None:
            said, found = verdict(recipe, way, followers)
            tally.update({"programs": 1, "refused altogether": found is None})
            tally.update({name: found.used.count(name) for name in set(found.used)} if found else {})
            reasons.update(reason.partition(":")[0] for reason in found.refusals) if found else None
            if said:
                wrong.append(f"{recipe} on the way {way}: {said}")
                print(wrong[-1], flush=True)

        each()
    used = [
        {"technique": name, "stretches": tally[name], "refused": reasons[name]} for name in (*ALONE, *GANGS, *RANKED)
    ]
    rows = [
        {"programs": tally["programs"], "refused_altogether": tally["refused altogether"], "wrong": len(wrong)},
        *used,
    ]
    bars = [
        Bar("programs that end otherwise than a bare loop", float(len(wrong)), most=0.0),
        Bar("programs", float(tally["programs"]), least=0.9 * count),
    ]
    return finish("random_programs", rows, bars, check=chosen.check, quick=chosen.quick)


if __name__ == "__main__":
    sys.exit(main())
