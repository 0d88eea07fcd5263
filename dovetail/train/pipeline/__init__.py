"""The technique `pipeline`: one task over several devices, each with a stage of its layers.

What a rank does is a list of actions from `planning/pipeline/timetables`, the same list that is checked,
simulated and drawn.
"""

from dovetail.train.pipeline.session import PipelineSession
from dovetail.train.pipeline.technique import PIPELINE, Pipeline

__all__ = ["PIPELINE", "Pipeline", "PipelineSession"]
