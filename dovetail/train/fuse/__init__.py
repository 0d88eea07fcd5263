"""The technique `fuse`: tasks of one architecture on one device, trained as one stacked program."""

import torch

from dovetail.train.base import NO_KNOBS, Knobs, Members, Technique, TrainingSession
from dovetail.train.fuse.fuse_session import FuseKnobs, FuseSession
from dovetail.train.fuse.fusibility import examine
from dovetail.vocabulary import TechniqueRefused


class Fuse(Technique):
    """Two or more tasks that are one program but for numbers: rates, decays, seeds, weights, data, how long."""

    name = "fuse"
    exactness = (
        "equal to resident up to the order of floating-point sums: losses within 1e-4 after 20 steps in fp32, "
        "within 2e-2 in bf16; dropout's masks are the same bits"
    )

    def refuse(self, members: Members) -> str | None:
        """Tasks that are not one program, and programs that cannot run for several tasks at once."""
        try:
            examine(members)
        except TechniqueRefused as refused:
            return str(refused)
        return None

    def open(self, members: Members, *, device: torch.device, threads: int, knobs: Knobs = NO_KNOBS) -> TrainingSession:
        """A session of the whole gang, at step 0."""
        return FuseSession(members, device=device, threads=threads, knobs=FuseKnobs.read(knobs))


FUSE = Fuse()

__all__ = ["FUSE", "FuseKnobs", "FuseSession"]
