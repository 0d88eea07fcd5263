"""The service by which processes share an accelerator: the real one on a device, and how ours begins and ends with a
program in its place that answers as it does."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from dovetail.engines import mps
from dovetail.engines.mps import Mps, is_mps_installed
from tests.engines.mps_control import put_control


@pytest.fixture
def control(tmp_path, monkeypatch):
    return put_control(tmp_path, monkeypatch)


def test_it_begins_and_ends_with_us(control, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    assert is_mps_installed()
    service = Mps.start()
    assert service is not None
    assert service.is_alive
    folder = Path(service.environment["CUDA_MPS_PIPE_DIRECTORY"])
    assert folder.stat().st_mode & 0o077 == 0, "nobody else may ask it"
    assert "CUDA_VISIBLE_DEVICES" not in (folder / "environment").read_text(), "workers name devices by their numbers"
    process = psutil.Process(int((folder / "pid").read_text()))
    service.close()
    service.close()
    assert not folder.exists()
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_it_ends_with_us_however_we_end(control, tmp_path):
    code = (
        "import os\n"
        "from dovetail.engines.mps import Mps\n"
        "service = Mps.start()\n"
        "print(service.environment['CUDA_MPS_PIPE_DIRECTORY'], flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout
    left = Path(said.strip())
    number = int((left / "pid").read_text())
    until = time.monotonic() + 120
    while psutil.pid_exists(number) and psutil.Process(number).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until, "it is still there"
        time.sleep(0.05)
    following = Mps.start()
    assert following is not None
    following.close()
    assert not left.exists(), "the next one clears away what was left"


def test_where_it_does_not_answer_there_is_none(control, monkeypatch):
    control.write_text("#!/bin/sh\nexit 1\n")
    assert Mps.start() is None
    monkeypatch.setattr(mps, "_CONTROL", "no-such-program")
    assert not is_mps_installed()
    assert Mps.start() is None


def test_one_that_has_only_just_begun_ends_at_once(control):
    control.write_text(control.read_text().replace("echo $$ > pid; ", ""))
    service = Mps.begin()
    assert service is not None
    before = time.monotonic()
    service.close()
    assert time.monotonic() - before < mps._END_SECONDS / 2


def test_one_that_had_the_time_to_answer_and_does_not_is_waited_for_no_more(control, monkeypatch):
    control.write_text(control.read_text().replace("echo $$ > pid; ", ""))
    service = Mps.begin()
    assert service is not None
    process = service._process
    before = time.monotonic()
    monkeypatch.setattr(service, "_began", before - mps._START_SECONDS)
    assert not service.answers()
    assert time.monotonic() - before < mps._START_SECONDS / 2
    assert process.poll() is not None


def test_a_users_own_is_used_and_left_alone(control, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert Mps.start() is None, "nobody answers there"
    (tmp_path / "pid").write_text("1")
    service = Mps.start()
    assert service is not None
    assert not service.environment, "workers inherit it"
    service.close()
    assert (tmp_path / "pid").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not is_mps_installed(), reason="there is no Multi-Process Service")
def test_a_client_computes_through_the_real_one():
    service = Mps.start()
    assert service is not None
    code = "import torch; print(float(torch.ones(3, device='cuda').sum()))"
    try:
        said = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **service.environment},
            capture_output=True,
            text=True,
            check=True,
        )
        assert said.stdout.strip() == "3.0"
    finally:
        service.close()
