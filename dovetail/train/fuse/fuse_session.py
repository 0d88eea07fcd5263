"""A session of fused tasks: batches in, one step of the whole stack, a report for each; and its knobs."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from dovetail.train.base import GangSession, SessionMember, StepReport
from dovetail.train.fuse.cuda_graphs import Compiled, Graphs
from dovetail.train.fuse.dropout_masks import Masks, dropouts_of
from dovetail.train.fuse.fused_member import FusedMember
from dovetail.train.fuse.fused_program import Outline
from dovetail.train.fuse.fusibility import Examined, examine
from dovetail.train.fuse.outline import outline
from dovetail.train.fuse.shared_tensors import layout_of, share_tensors
from dovetail.train.fuse.stack import Stack
from dovetail.train.fuse.stacked_batches import Form, flatten, stack
from dovetail.train.fuse.stacked_optimizers import rule_for
from dovetail.train.loop import to_device
from dovetail.train.state import TrainingState
from dovetail.vocabulary import CheckpointError, ProgramError, TechniqueRefused

_WAYS = ("off", "graph", "full")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FuseKnobs:
    """What an option may ask of fuse. `compile`: "off", "graph" (a CUDA graph of each step, the default on CUDA) or
    "full" (torch.compile and, on CUDA, a graph), which takes a minute to begin with and pays in long trainings.

    >>> FuseKnobs.read({}).compile_on(torch.device("cpu"))
    'off'
    """

    compile: str | None = None

    @staticmethod
    def read(knobs: Mapping[str, Any]) -> "FuseKnobs":
        """From an option's knobs; names that are none of ours are refused."""
        known = {field.name for field in dataclasses.fields(FuseKnobs)}
        if unknown := sorted(knobs.keys() - known):
            raise ProgramError(f"fuse's knobs must be among {sorted(known)}, got {unknown}.")
        if knobs.get("compile") not in (None, *_WAYS):
            raise ProgramError(f"fuse's knob 'compile' must be one of {list(_WAYS)}, got {knobs['compile']!r}.")
        return FuseKnobs(**knobs)

    def compile_on(self, device: torch.device) -> str:
        """How steps run on this device: "graph", "off", or as the knob says."""
        return self.compile or ("graph" if device.type == "cuda" else "off")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackPart:
    """A microbatch of some members whose batches have one form. `places` are their rows; None is all of them."""

    form: Form
    outline: Outline
    divisor: int
    places: tuple[int, ...] | None
    leaves: list[torch.Tensor]
    masks: dict[str, torch.Tensor]

    def tensors(self) -> list[torch.Tensor]:
        """Everything of it that is on the device."""
        return [*self.leaves, *self.masks.values()]

    def of(self, tensors: Sequence[torch.Tensor]) -> "StackPart":
        """The same part of the stack with other tensors in the places of its own."""
        count = len(self.leaves)
        masks = dict(zip(self.masks, tensors[count:], strict=True))
        return dataclasses.replace(self, leaves=list(tensors[:count]), masks=masks)


class FuseSession(GangSession[FusedMember]):
    """A gang of trainings that take their steps as one program."""

    def __init__(
        self, members: Sequence[SessionMember], *, device: torch.device, threads: int, knobs: FuseKnobs
    ) -> None:
        found: Examined = examine(members, device=device)
        self._program, self._device = found.program, device
        layout = layout_of([member.training for member in members])
        share_tensors([member.training.model for member in members], layout.common, device)
        self._members = [FusedMember(member, device=device, threads=threads) for member in members]
        self._layout = layout
        self._outlines: dict[Form, Outline] = {found.form: found.outline} if found.layout == layout else {}
        unused = self._outline(found.form).unused
        # What the loss does not depend on has no gradient alone either, and is left alone.
        trained = tuple(name for name in layout.trained if name not in unused)
        self._stacking = dataclasses.replace(layout, trained=trained, apart=layout.apart + tuple(sorted(unused)))
        self._rule = rule_for([member.optimizer for member in self._members])
        self._masks = Masks(
            [member.training.model for member in self._members], [member.random for member in self._members], device
        )
        how = knobs.compile_on(device)
        # What members' own optimizers do goes by numbers of the step, which a graph would keep.
        is_captured = how in ("graph", "full") and device.type == "cuda" and self._rule is not None
        self._graphs = Graphs(device) if is_captured else None
        self._forward = Compiled(self._program, compile=how == "full")
        self._update = Compiled(self._rule.apply, compile=how == "full") if self._rule is not None else None
        self._stack = self._make_stack(range(len(members)))

    def advance(self, live: Sequence[int] = (0,)) -> list[StepReport]:
        """Take one step of each live member, all at once."""
        rows = tuple(live)
        if not rows:
            return []
        batches = self._take_batches(rows)
        if rows != self._stack.rows:
            self._restack(rows)
        try:
            parts = self._parts(batches)
            numbers = self._stack.numbers().to(self._device, non_blocking=True)
            losses, metrics = self._compute(parts, numbers)
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            self._try_each(batches)
            if isinstance(error, ProgramError | TechniqueRefused):
                raise
            raise TechniqueRefused(
                f"a stack must take what each of its models takes by itself; it raised {type(error).__name__}: {error}"
            ) from error
        self._stack.count()
        self.last_losses = losses
        reports: list[StepReport] = []
        for member, loss, own in zip(self._stack.members, losses.unbind(), metrics, strict=True):
            with _blaming(len(reports)):
                try:
                    reports.append(member.count_step(loss, own))
                except Exception as error:
                    raise member.failure(error, batches[len(reports)][-1]) from error
        return reports

    def state(self, member: int = 0) -> TrainingState:
        """Everything that decides how one member goes on."""
        if member in self._stack.rows:
            self._stack.lend(self._stack.rows.index(member))
        return super().state(member)

    def load(self, state: TrainingState, member: int = 0) -> None:
        """Let one member go on from `state`."""
        for name, tensor in self._stack.common.items():
            saved = state.tensors.get(f"model/{name}")
            if saved is not None and not torch.equal(saved.to(tensor.device, tensor.dtype), tensor):
                raise CheckpointError(
                    f"what the tasks of a stack have in common must be the same in their checkpoints; {name!r} is not. "
                    f"Resume this task alone, with technique 'resident'."
                )
        super().load(state, member)
        if member in self._stack.rows:
            self._stack.adopt(self._stack.rows.index(member))

    def close(self) -> None:
        """Leave the models as they were; each has tensors of its own again, but for those that all had in common."""
        if self._graphs is not None:
            self._graphs.clear()
        self._stack.dissolve()
        super().close()

    @property
    def failure(self) -> str | None:
        """Why steps are not compiled or captured though they should be; None where they are."""
        graphs = self._graphs.failure if self._graphs is not None else None
        found = (self._forward.failure, self._update.failure if self._update is not None else None, graphs)
        return "; ".join(filter(None, found)) or None

    # Who is in the stack

    def _make_stack(self, rows: Sequence[int]) -> Stack:
        return Stack({row: self._members[row] for row in rows}, self._stacking, self._rule, device=self._device)

    def _restack(self, rows: tuple[int, ...]) -> None:
        """Members have left, or come back. The others' values are copied, bit by bit."""
        if self._graphs is not None:
            self._graphs.clear()
        self._stack.dissolve()
        self._stack = self._make_stack(rows)

    # One step

    def _take_batches(self, rows: Sequence[int]) -> list[list[Any]]:
        taken: list[list[Any]] = []
        for number in rows:
            with _blaming(len(taken)):
                taken.append(self._members[number].take())
        return taken

    def _parts(self, batches: Sequence[Sequence[Any]]) -> list[StackPart]:
        """The step's microbatches in order, those of one form together."""
        parts = []
        for number in range(max(map(len, batches))):
            groups: dict[tuple[Form, int], list[tuple[int, list[torch.Tensor]]]] = {}
            for place, own in enumerate(batches):
                if number < len(own):
                    form, leaves = flatten(own[number])
                    groups.setdefault((form, len(own)), []).append((place, leaves))
            parts += [self._part(number, form, divisor, group) for (form, divisor), group in groups.items()]
        return parts

    def _part(
        self, microbatch: int, form: Form, divisor: int, group: Sequence[tuple[int, list[torch.Tensor]]]
    ) -> StackPart:
        places, outlined = tuple(place for place, _ in group), self._outline(form)
        if outlined.draws:
            for place in places:
                self._stack.members[place].begin(microbatch)
        numbers = [self._stack.rows[place] for place in places]
        return StackPart(
            form=form,
            outline=outlined,
            divisor=divisor,
            places=None if len(places) == len(self._stack.rows) else places,
            leaves=stack([leaves for _, leaves in group], self._device),
            masks=self._masks.draw(outlined.draws, numbers) if outlined.draws else {},
        )

    def _compute(self, parts: list[StackPart], numbers: torch.Tensor) -> tuple[torch.Tensor, list[dict[str, Any]]]:
        whole = all(part.places is None for part in parts)
        if self._graphs is None or not whole:
            return self._step(parts, numbers)
        key = tuple((part.form, part.divisor) for part in parts)

        def compute(inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[dict[str, Any]]]:
            rest, given = list(inputs[1:]), []
            for part in parts:
                count = len(part.tensors())
                given.append(part.of(rest[:count]))
                rest = rest[count:]
            return self._step(given, inputs[0])

        return self._graphs.run(key, compute, [numbers, *(tensor for part in parts for tensor in part.tensors())])

    def _step(self, parts: Sequence[StackPart], numbers: torch.Tensor) -> tuple[torch.Tensor, list[dict[str, Any]]]:
        """Gradients of all parts, and the update. Nothing in it waits for the device."""
        count = len(self._stack.rows)
        losses = torch.zeros(count, device=self._device)
        metrics: list[dict[str, Any]] = [{} for _ in range(count)]
        totals: list[torch.Tensor] = []
        for part in parts:
            found, own, gradients = self._gradients(part)
            places = range(count) if part.places is None else part.places
            if part.places is None:
                losses = losses + found / part.divisor
                totals = [one.add_(more) for one, more in zip(totals, gradients, strict=True)] if totals else gradients
            else:
                index = torch.tensor(part.places, device=self._device)
                losses = losses.index_add(0, index, (found / part.divisor).float())
                totals = totals or self._stack.zeros()
                totals = [one.index_add_(0, index, more) for one, more in zip(totals, gradients, strict=True)]
            for row, place in enumerate(places):
                metrics[place] = {
                    name: value[row] if isinstance(value, torch.Tensor) else value for name, value in own.items()
                }
        with torch.no_grad():
            self._stack.update(totals, numbers, self._update)
        return losses, metrics

    def _gradients(self, part: StackPart) -> tuple[torch.Tensor, dict[str, Any], list[torch.Tensor]]:
        found: tuple[torch.Tensor, dict[str, Any], list[torch.Tensor]]
        found = self._forward.run(lambda forward: self._differentiate(part, forward))
        return found

    def _differentiate(
        self, part: StackPart, forward: Callable[..., Any]
    ) -> tuple[torch.Tensor, dict[str, Any], list[torch.Tensor]]:
        tensors, index = self._stack.tensors(), None
        trained = self._stacking.trained
        if part.places is not None:
            index = torch.tensor(part.places, device=self._device)
            tensors = {name: tensor.detach()[index] for name, tensor in tensors.items()}
            for name in trained:
                tensors[name].requires_grad_()
        outlined = part.outline
        self._program.prepare(outlined.draws, self._masks.scales(dropouts_of(outlined.draws)))
        lowering = self._program.lowering(outlined)
        with self._program.computing(lowering, attends=outlined.attends, loops=outlined.loops):
            losses, metrics = forward(
                tensors, self._stack.common, part.masks, part.leaves, form=part.form, outline=outlined
            )
        total = (losses / part.divisor if part.divisor > 1 else losses).sum()
        found = torch.autograd.grad(total, [tensors[name] for name in trained])
        if index is not None:
            self._stack.put(index, tensors)
        gradients = self._stack.gather(dict(zip(trained, found, strict=True)))
        return losses.detach(), metrics, gradients

    def _outline(self, form: Form) -> Outline:
        if form not in self._outlines:
            model = self._members[0].training.model
            found = outline(self._program, model, self._layout, form)
            if self._outlines and found.unused != next(iter(self._outlines.values())).unused:
                raise TechniqueRefused("the loss must depend on the same parameters for every batch; it does not")
            self._outlines[form] = found
        return self._outlines[form]

    # What goes wrong

    def _try_each(self, batches: Sequence[Sequence[Any]]) -> None:
        """Raise what the first says whose own model rejects its batch too: it was that one's fault."""
        for place, member in enumerate(self._stack.members):
            with _blaming(place):
                for batch in batches[place]:
                    member.try_alone(to_device(batch, self._device))


@contextlib.contextmanager
def _blaming(place: int) -> Iterator[None]:
    """Let what is raised within be the fault of the live member of this place."""
    try:
        yield
    except Exception as error:
        error.member = place  # type: ignore[attr-defined]
        raise
