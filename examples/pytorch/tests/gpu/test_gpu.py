"""On a GPU: numbers, types, states, GradScaler, graphs, and NCCL with one rank. Skipped where there is no GPU or the build has no
module for it."""

import copy
import os
import socket

import numpy as np
import pytest
import torch

import slamb.torch
from slamb._load import module_for
from slamb.torch._part import Part
from slamb.torch._ranks import Ranks


def _reason_to_skip():
    if not torch.cuda.is_available():
        return "no GPU"
    try:
        module_for("cuda")
    except ValueError as missing:
        return str(missing)
    return None


pytestmark = pytest.mark.skipif(_reason_to_skip() is not None, reason=str(_reason_to_skip()))


def make_model(dtype=torch.float32):
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 129), torch.nn.ReLU(), torch.nn.Linear(129, 5)
    )
    return model.to("cuda", dtype)


def set_gradients(model, step):
    torch.manual_seed(100 + step)
    for p in model.parameters():
        p.grad = torch.randn(p.shape).to(p.device, p.dtype)


def train(model, optimizer, first, last):
    for step in range(first, last):
        set_gradients(model, step)
        optimizer.step()


def parameters_of(model):
    return [p.detach().float().cpu() for p in model.parameters()]


def distance(a, b):
    return max((x - y).abs().max().item() for x, y in zip(parameters_of(a), parameters_of(b)))


def test_adamw_follows_torch():
    ours, theirs = make_model(), make_model()
    train(ours, slamb.torch.AdamW(ours.parameters(), lr=1e-2), 0, 30)
    train(theirs, torch.optim.AdamW(theirs.parameters(), lr=1e-2), 0, 30)
    assert distance(ours, theirs) < 1e-5
    assert distance(ours, make_model()) > 1e-2


@pytest.mark.parametrize("name", ["AdamW", "Lamb", "Slamb", "OneBitAdam", "OneBitLamb", "ZeroOneAdam"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_follows_the_host(name, dtype):
    on_gpu = make_model(dtype)
    on_host = copy.deepcopy(on_gpu).cpu()
    for model in (on_gpu, on_host):
        train(model, getattr(slamb.torch, name)(model.parameters(), lr=1e-2), 0, 10)
    assert distance(on_gpu, on_host) < (1e-5 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("name", ["AdamW", "Lamb", "Slamb", "OneBitAdam", "OneBitLamb", "ZeroOneAdam"])
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(name):
    make = getattr(slamb.torch, name)
    model = make_model(torch.bfloat16)
    optimizer = make(model.parameters(), lr=1e-2)
    train(model, optimizer, 0, 5)
    other = copy.deepcopy(model)
    resumed = make(other.parameters(), lr=7.0)
    resumed.load_state_dict(optimizer.state_dict())
    train(model, optimizer, 5, 10)
    train(other, resumed, 5, 10)
    assert distance(model, other) == 0.0


def test_a_state_of_the_host_continues_on_a_gpu():
    on_host = make_model().cpu()
    optimizer = slamb.torch.Lamb(on_host.parameters(), lr=1e-2)
    train(on_host, optimizer, 0, 5)
    on_gpu = copy.deepcopy(on_host).cuda()
    resumed = slamb.torch.Lamb(on_gpu.parameters(), lr=1e-2)
    resumed.load_state_dict(optimizer.state_dict())
    train(on_host, optimizer, 5, 10)
    train(on_gpu, resumed, 5, 10)
    assert distance(on_gpu, on_host) < 1e-5


def test_grad_scaler_scales_and_skips():
    plain, scaled = make_model(), make_model()
    of_plain = slamb.torch.AdamW(plain.parameters(), lr=1e-2)
    of_scaled = slamb.torch.AdamW(scaled.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, growth_interval=1000)
    x = torch.randn(16, 3, 8, 8, device="cuda")
    for step in range(6):
        of_plain.zero_grad()
        of_scaled.zero_grad()
        scaler.scale(scaled(x).square().mean()).backward()
        if step == 3:  # an overflow: nothing moves, and the scale is halved
            next(scaled.parameters()).grad[0] = float("inf")
            before = parameters_of(scaled)
        scaler.step(of_scaled)
        scaler.update()
        if step == 3:
            assert all(torch.equal(a, b) for a, b in zip(before, parameters_of(scaled)))
            assert scaler.get_scale() == 512.0
            continue
        plain(x).square().mean().backward()
        of_plain.step()
    assert distance(plain, scaled) < 1e-5


def test_steps_follow_the_work_of_the_current_stream():
    ours, theirs = make_model(), make_model()
    optimizer, reference = slamb.torch.AdamW(ours.parameters()), torch.optim.AdamW(theirs.parameters())
    for step in range(5):
        with torch.cuda.stream(torch.cuda.Stream()):
            for model, one in ((ours, optimizer), (theirs, reference)):
                set_gradients(model, step)
                for p in model.parameters():  # slow work that the step must wait for
                    for _ in range(50):
                        p.grad.mul_(1.01)
                one.step()
                for p in model.parameters():
                    p.data.mul_(0.999)
            torch.cuda.current_stream().synchronize()
    assert distance(ours, theirs) < 1e-5


def test_a_captured_step_reads_the_learning_rate_at_each_replay():
    ours, theirs = make_model(), make_model()
    rate = torch.tensor(1e-2, device="cuda")
    optimizer = slamb.torch.AdamW(ours.parameters(), lr=rate, compare_every=0)
    reference = torch.optim.AdamW(theirs.parameters(), lr=1e-2)
    set_gradients(ours, 0)
    set_gradients(theirs, 0)
    optimizer.step()
    reference.step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    for step in range(1, 6):
        lr = 1e-2 / (1 + step)
        rate.fill_(lr)
        reference.param_groups[0]["lr"] = lr
        torch.manual_seed(100 + step)
        for p, q in zip(ours.parameters(), theirs.parameters()):
            gradient = torch.randn(p.shape).cuda()
            p.grad.copy_(gradient)
            q.grad.copy_(gradient)
        graph.replay()
        reference.step()
    torch.cuda.synchronize()
    assert distance(ours, theirs) < 1e-5
    assert optimizer.statistics()["step"] == 6


@pytest.fixture
def nccl_group():
    if not torch.distributed.is_nccl_available():
        pytest.skip("torch has no NCCL")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("nccl", rank=0, world_size=1)
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


def test_the_borrowed_communicator_of_nccl_works(nccl_group):
    model, alone = make_model(), make_model()
    optimizer = slamb.torch.Lamb(model.parameters(), lr=1e-2)
    assert optimizer._ranks is None  # one rank exchanges nothing, so the test gives it the communicator
    optimizer._shared.ranks = Ranks(nccl_group, torch.device("cuda"))
    optimizer._arguments["check_gradients"] = False
    optimizer._set_parts([Part(optimizer, range(len(list(model.parameters()))))])
    train(model, optimizer, 0, 5)
    optimizer.broadcast_parameters()
    optimizer.compare_ranks()
    train(alone, slamb.torch.Lamb(alone.parameters(), lr=1e-2), 0, 5)
    assert distance(model, alone) < 1e-6
    assert np.isfinite(optimizer.statistics(with_norms=True)["parameter_norm"])


def test_the_state_has_the_moments_in_the_memory_of_the_gpu():
    model, other = make_model(), make_model()
    optimizer, reference = slamb.torch.AdamW(model.parameters(), lr=1e-2), torch.optim.AdamW(other.parameters(), lr=1e-2)
    train(model, optimizer, 0, 3)
    train(other, reference, 0, 3)
    for p, q in zip(model.parameters(), other.parameters()):
        for name in ("exp_avg", "exp_avg_sq"):
            assert optimizer.state[p][name].device == p.device
            torch.testing.assert_close(optimizer.state[p][name], reference.state[q][name])
        assert float(optimizer.state[p]["step"]) == 3.0
        optimizer.state[p]["exp_avg"].zero_()
        reference.state[q]["exp_avg"].zero_()
    train(model, optimizer, 3, 6)
    train(other, reference, 3, 6)
    assert distance(model, other) < 1e-5
    fresh = make_model()
    resumed = slamb.torch.AdamW(fresh.parameters())
    fresh.load_state_dict(model.state_dict())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(model, optimizer, 6, 8)
    train(fresh, resumed, 6, 8)
    assert distance(model, fresh) == 0.0
    resumed.state.clear()
    train(fresh, resumed, 8, 9)
    assert resumed.statistics()["step"] == 1


def test_parameters_on_two_devices_are_rejected():
    with pytest.raises(ValueError, match="parameter 1 is on cpu, but parameter 0 is on cuda:0"):
        slamb.torch.AdamW([torch.zeros(3, device="cuda", requires_grad=True), torch.zeros(3, requires_grad=True)])
