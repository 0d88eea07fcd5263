"""The nouns that every room of Dovetail uses, one word for one thing. Floor 0: no torch, no I/O."""

from dovetail.vocabulary.decisions import (
    Allocation,
    Entity,
    Family,
    Member,
    Option,
    Placement,
    Plan,
    Rejection,
    Schedule,
    Share,
)
from dovetail.vocabulary.errors import (
    CheckpointError,
    DovetailError,
    InvalidRecord,
    InvalidSchedule,
    InvalidWorkload,
    NoFeasiblePlan,
    ProgramError,
    StoreBusy,
    StoreError,
    TechniqueRefused,
    TrainingError,
)
from dovetail.vocabulary.events import EVENTS, Event
from dovetail.vocabulary.hardware import Cluster, Device, Kind, Link, Node
from dovetail.vocabulary.objectives import OBJECTIVES, Objective
from dovetail.vocabulary.profiles import Fingerprint, LayerProfile, Profile
from dovetail.vocabulary.records import FrozenDict, dumps, from_json, loads, to_json
from dovetail.vocabulary.work import Halving, Program, Stop, Task, Workload

__all__ = [
    "EVENTS",
    "OBJECTIVES",
    "Allocation",
    "CheckpointError",
    "Cluster",
    "Device",
    "DovetailError",
    "Entity",
    "Event",
    "Family",
    "Fingerprint",
    "FrozenDict",
    "Halving",
    "InvalidRecord",
    "InvalidSchedule",
    "InvalidWorkload",
    "Kind",
    "LayerProfile",
    "Link",
    "Member",
    "NoFeasiblePlan",
    "Node",
    "Objective",
    "Option",
    "Placement",
    "Plan",
    "Profile",
    "Program",
    "ProgramError",
    "Rejection",
    "Schedule",
    "Share",
    "Stop",
    "StoreBusy",
    "StoreError",
    "Task",
    "TechniqueRefused",
    "TrainingError",
    "Workload",
    "dumps",
    "from_json",
    "loads",
    "to_json",
]
