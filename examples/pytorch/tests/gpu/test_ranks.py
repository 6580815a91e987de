"""Ranks that share one GPU over NCCL, started by torchrun: the checks of ranks.py. Skipped without a GPU, or if NCCL refuses. The
same script runs on the host with two ranks, so that it is tried everywhere."""

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from launch import RANKS, Launch, Torchrun  # noqa: E402
from test_ranks_exit import ORDERS, require_end_in_order  # noqa: E402
from slamb._load import module_for  # noqa: E402

SCRIPT = Path(__file__).with_name("ranks.py")


def _ranks():
    sys.path.insert(0, str(RANKS))
    try:
        spec = importlib.util.spec_from_file_location("ranks_on_one_gpu", SCRIPT)
        script = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(script)
        return script
    finally:
        sys.path.remove(str(RANKS))


_script = _ranks()
CHECKS = _script.checks.found_in(vars(_script))


def reason_to_skip():
    """Why ranks cannot share a GPU here; None if nothing speaks against it yet."""
    if not torch.cuda.is_available():
        return "no GPU"
    if not torch.distributed.is_nccl_available():
        return "torch has no NCCL"
    try:
        module_for("cuda")
    except ValueError as missing:
        return str(missing)
    return None


_launches = {}  # by device and number of ranks


def launched(device, ranks):
    if (device, ranks) not in _launches:
        names = [one.name for one in CHECKS if ranks in one.ranks]
        script = os.path.relpath(SCRIPT.with_suffix(""), RANKS)
        _launches[device, ranks] = Launch(ranks, names, _script.SECONDS, script, ["--device", device])
    return _launches[device, ranks]


def skip_if_refused(text):
    found = re.search(r"Duplicate GPU detected[^\n|]*", text)
    if found:
        pytest.skip(f"NCCL refuses two ranks on one GPU: {found[0]}")


PLACES = [pytest.param("cpu", 2, id="cpu-2"), pytest.param("cuda:0", 2, id="cuda-2"), pytest.param("cuda:0", 4, id="cuda-4")]


@pytest.mark.parametrize(("device", "ranks"), PLACES)
def test_ranks_on_one_device(device, ranks):
    if device != "cpu" and (reason := reason_to_skip()):
        pytest.skip(reason)
    launch = launched(device, ranks)
    skip_if_refused(launch.run.output + launch.run.errors)
    problems = {name: launch.problem_of(name) for name in launch.results}
    wrong = [f"{name}: {problem}" for name, problem in problems.items() if problem is not None]
    if wrong:
        pytest.fail(f"{len(wrong)} of {len(problems)} checks failed:\n" + "\n".join(wrong[:10]), pytrace=False)
    assert len(problems) > 20


@pytest.mark.parametrize("device", [pytest.param("cpu", id="cpu"), pytest.param("cuda:0", id="cuda")])
def test_a_killed_rank_is_told_to_the_others(device):
    if device != "cpu" and (reason := reason_to_skip()):
        pytest.skip(reason)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launch = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "3", "OMP_NUM_THREADS": "1"}
    ranks = []
    try:
        for rank in range(3):
            ranks.append(
                subprocess.Popen(
                    [sys.executable, str(SCRIPT), "--device", device, "--lose"],
                    env={**os.environ, **launch, "RANK": str(rank)},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        outputs = [one.communicate(timeout=120)[0] for one in ranks]
    finally:
        for one in ranks:
            one.kill()
            one.wait()
    skip_if_refused("\n".join(outputs))
    assert ranks[2].returncode == -signal.SIGKILL, outputs[2]
    for rank in (0, 1):
        assert ranks[rank].returncode == 0 and "ok told after " in outputs[rank], f"rank {rank}: {outputs[rank]}"


@pytest.mark.parametrize("ranks", [pytest.param(2, id="cuda-2")])
def test_captured_steps_of_several_ranks(ranks, monkeypatch):
    if reason := reason_to_skip():
        pytest.skip(reason)
    for name, value in {**_script.SETTINGS, "SLAMB_RANKS_SHARE_A_GPU": "1"}.items():
        monkeypatch.setenv(name, value)
    run = Torchrun(os.path.relpath(SCRIPT.with_name("graph_ranks"), RANKS), ranks)
    skip_if_refused(run.output + run.errors)
    assert run.status == 0, run.output + run.errors


@pytest.mark.parametrize("order", [pytest.param(order, id=f"cuda-{order}") for order in ORDERS])
def test_processes_end_in_order_whatever_ends_first(order):
    if reason := reason_to_skip():
        pytest.skip(reason)
    require_end_in_order(order, 2, "cuda:0")
