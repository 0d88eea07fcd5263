"""A program in the place of NVIDIA's Multi-Process Service, which answers as that does and shares nothing."""

import os
from pathlib import Path

import pytest

CONTROL = """#!/bin/sh
cd "$CUDA_MPS_PIPE_DIRECTORY"
if [ "$1" = -f ]; then env > environment; echo $$ > pid; exec sleep 600; fi
read question
case "$question" in
  quit*) kill $(cat pid) ;;
  *) test -e pid ;;
esac
"""


def put_control(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put it where it is found first; no service runs already."""
    path = folder / "nvidia-cuda-mps-control"
    path.write_text(CONTROL)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    return path
