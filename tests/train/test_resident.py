import pytest
import torch
from torch import nn

from dovetail.testing import programs
from dovetail.testing.techniques import TechniqueConformance
from dovetail.train import RESIDENT, SessionMember, Training
from dovetail.vocabulary import ProgramError, TrainingError


class TestResident(TechniqueConformance):
    technique = RESIDENT


class TestResidentOnTwoThreads(TechniqueConformance):
    technique = RESIDENT
    threads = 2
