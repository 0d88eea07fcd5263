"""What becomes of a segment's gradients in a step: an update by the host, by the device, or by either at the end.

Updates wait for the end where clipping needs the norm of all gradients, and in a session's first step, which may have
to be taken again. Knows segments, their optimizers and gradients; knows nothing of the model or of memory.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dovetail.train.base import Training
from dovetail.train.spill.device_resources import DeviceResources
from dovetail.train.spill.host_updates import Groups, Job, add_up, forget_gradients, step
from dovetail.train.spill.lanes import Mark
from dovetail.train.spill.resident_segments import Parts, ResidentSegments
from dovetail.train.spill.segments import Entry, LiveSegment

_rounds = itertools.count()


class SegmentUpdates:
    """The updates of a session's steps. `complete` is called by autograd's thread, all else by the one that trains."""

    def __init__(
        self,
        training: Training,
        parts: Parts,
        *,
        residents: ResidentSegments,
        resources: DeviceResources,
        device: torch.device,
    ) -> None:
        self._training, self._parts, self._residents = training, parts, residents
        self._resources, self._device = resources, device
        self._last, self._holds, self._round = False, False, 0
        self._held: list[Job] = []
        self._early: set[LiveSegment] = set()
        self._groups: Groups = ()
        self.has_changed = False
        """Whether anything was updated since `begin`."""

    def begin(self, groups: Sequence[Mapping[str, Any]], *, holds: bool) -> None:
        """Begin a step with these settings of the optimizer; `holds`: all updates wait for its end."""
        self._groups = [_settings(group) for group in groups]
        self._round, self._holds, self.has_changed = next(_rounds), holds, False

    def microbatch(self, *, last: bool) -> None:
        """Begin another microbatch: the gradients that come now are its."""
        self._last = last

    def forget(self) -> None:
        """Forget the gradients of a step that will be taken again."""
        self._held = []
        self._early.clear()

    def complete(self, segment: LiveSegment, arrived: list[Entry], landed: Mark | None) -> None:
        """A segment's gradients of this microbatch are there, or on their way to the host."""
        if self._last:
            self._early.discard(segment)
        else:
            self._early.add(segment)
        if self._training.accumulate > 1 and landed is None:
            for entry in arrived:
                assert entry.gradient is not None
                add_up(entry.master, entry.gradient)
                entry.gradient = None
        holds = self._holds or segment.is_read_late
        if landed is not None and (self._training.accumulate > 1 or not holds):
            self._submit(self._job(segment, arrived, landed, last=self._last and not holds))
        if self._last and holds:
            self._held.append(self._job(segment, arrived, landed, last=True))
        elif self._last and landed is None:
            self._update_kept(self._job(segment, arrived, None, last=True), None)

    def complete_early_ones(self) -> None:
        """Segments that earlier microbatches gave gradients and the last did not have their update too."""
        for segment in sorted(self._early, key=lambda segment: segment.index):
            landed = None if segment.kept else self._resources.lanes.mark()
            job = self._job(segment, [], landed, last=True)
            job.added_up = True
            if self._holds:
                self._held.append(job)
            elif segment.kept:
                self._update_kept(job, None)
            else:
                self._submit(job)
        self._early.clear()

    def _job(self, segment: LiveSegment, arrived: list[Entry], landed: Mark | None, *, last: bool) -> Job:
        return Job(
            segment=segment,
            optimizer=self._parts[segment],
            landed=landed,
            present=arrived,
            groups=self._groups,
            round=self._round,
            last=last,
            expected=self._residents.placement.expect,
            finished=self._residents.placement.return_to_disk,
            zeros=self._residents.placement.zeros(segment),
            disk_bytes=self._residents.disk_bytes(segment) if last else 0,
        )

    def _submit(self, job: Job) -> None:
        self.has_changed = self.has_changed or job.last  # sums are forgotten where a step is given up
        if job.last:
            self._resources.streamer.discard(job.segment)  # what is there will be out of date
        self._resources.updates.submit(job)

    def update_held(self) -> None:
        scale = self._clip() if self._training.clip_norm is not None else None
        on_host = self._copy_to_host(scale) if scale is not None else None
        held, self._held = sorted(self._held, key=lambda job: job.segment.index), []
        for job in held:
            if job.segment.kept:
                self._update_kept(job, scale)
            else:
                job.scale, job.added_up = on_host, self._training.accumulate > 1
                self._submit(job)

    @torch.no_grad()
    def _update_kept(self, job: Job, scale: torch.Tensor | None) -> None:
        # One parameter after another, so that only one gradient at a time exists in full precision.
        segment, self.has_changed = job.segment, True
        assert segment.travel is not None
        for entry in job.present:
            if entry.gradient is not None:
                entry.master.grad, entry.gradient = entry.gradient.to(entry.master.grad_dtype), None
                step(job.optimizer, job.groups, scale)
        if self._training.accumulate > 1:
            step(job.optimizer, job.groups, scale)
        forget_gradients(segment)
        self._residents.placement.refresh(segment)

    def _clip(self) -> torch.Tensor:
        """What gradients are to be multiplied by: as torch.nn.utils.clip_grad_norm_ has it.

        Each gradient's norm is taken on the device as it comes, so that the whole is known when backward ends and no
        gradient is read again for it. The updates could not begin earlier: that wait is what clipping costs here.
        """
        entries = sorted((e for s in self._parts for e in s.trainable), key=lambda entry: entry.number)
        if self._training.accumulate > 1:
            self._resources.updates.drain(list(self._parts))
            found = [torch.linalg.vector_norm(e.master.grad) for e in entries if e.master.grad is not None]
        else:
            found = [entry.norm for entry in entries if entry.norm is not None]
            for entry in entries:
                entry.norm = None
        total = torch.linalg.vector_norm(torch.stack([norm.to(self._device) for norm in found]))
        assert self._training.clip_norm is not None
        return torch.clamp(self._training.clip_norm / (total + 1e-6), max=1.0)

    def _copy_to_host(self, scale: torch.Tensor) -> Callable[[], float]:
        there = self._resources.memory.scalar(scale.dtype)
        landed = self._resources.lanes.down(there, scale)

        def value(source: torch.Tensor = scale) -> float:  # it holds on to what is being copied
            landed.synchronize()
            return float(there)

        return value


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """A group's settings as they are now: a schedule changes rates in place, even while updates go on."""
    rest = {name: value for name, value in group.items() if name != "params"}
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in rest.items()}
