"""The technique `pipeline`: one task over several devices, each with a stage of its layers.

What a rank does is a list of actions from `planning/pipeline/timetables`, the same list that is checked,
simulated and drawn.
"""

import torch

from dovetail.train.base import NO_KNOBS, Knobs, Members, TrainingSession
from dovetail.train.pipeline.pipeline_layout import PipelineLayout
from dovetail.train.pipeline.pipeline_session import PipelineSession
from dovetail.train.ranks import RankedTechnique
from dovetail.train.schedulers import only_after_steps
from dovetail.train.spill.refusals import refusal
from dovetail.vocabulary import TechniqueRefused

__all__ = ["PIPELINE", "Pipeline", "PipelineSession"]


class Pipeline(RankedTechnique):
    """One task, a stage of its layers on each device."""

    name = "pipeline"
    exactness = (
        "synchronous timetables are bit-equal to resident with the same microbatches at a given thread count on CPU, "
        "dropout and replicated stages included, and equal up to the order of sums where batches are divided; "
        "'stashing', 'vertical_sync' and '2bw', asked for by name, are bit-equal to their recurrence on one device"
    )

    def refuse(self, members: Members) -> str | None:
        """What cannot be cut shows only in the first step, and is refused there."""
        if len(members) != 1:
            return f"pipeline trains one task at a time, got {len(members)}"
        training = members[0].training
        if training.step is not None:
            return "pipeline must take the step itself; the training has a step function of its own"
        if training.precision == "bf16-pure":
            return "pipeline computes under autocast or in fp32; use precision 'bf16', or shard"
        return refusal(training, name=self.name)

    def open(self, members: Members, *, device: torch.device, threads: int, knobs: Knobs = NO_KNOBS) -> TrainingSession:
        """This rank's session at step 0. All ranks must have built the same weights, and be given the same knobs."""
        self.check(members)
        ranks, (member,) = self.company(), members
        layout = PipelineLayout.read(knobs, size=ranks.size, accumulate=member.training.accumulate)
        if layout.is_asynchronous and (reason := only_after_steps(member.training)):
            raise TechniqueRefused(f"{reason}; use a synchronous timetable, or step it after each step")
        return PipelineSession(member, device=device, threads=threads, ranks=ranks, layout=layout)


PIPELINE = Pipeline()
