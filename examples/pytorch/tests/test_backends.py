"""The backend of a process group, by the device of the parameters. Groups are stand-ins."""

import weakref

import pytest
import torch

import slamb.torch._ranks as ranks


class ProcessGroupNCCL:
    def _comm_ptr(self):
        return 4711


class ProcessGroupGloo:
    pass


class Wrapper:
    """As torch wraps a backend with TORCH_DISTRIBUTED_DEBUG=DETAIL."""

    def __init__(self, backend):
        self.wrapped_pg = backend


class Group:
    def __init__(self, size=2, **backends):
        self.size, self.backends = size, backends

    def _get_backend(self, device):
        if device.type not in self.backends:
            raise RuntimeError(f"No backend type associated with device type {device.type}")
        return self.backends[device.type]


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    monkeypatch.setattr(ranks.dist, "get_rank", lambda group: 0)
    monkeypatch.setattr(ranks.dist, "get_world_size", lambda group: group.size)
    monkeypatch.setattr(ranks.dist, "get_backend", lambda group: "nccl")


GPU, HOST = torch.device("cuda", 1), torch.device("cpu")


@pytest.mark.parametrize("backend", [ProcessGroupNCCL(), Wrapper(ProcessGroupNCCL())])
def test_nccl_is_called_with_parameters_on_a_gpu(backend, monkeypatch):
    group = Group(cpu=ProcessGroupGloo(), cuda=backend)
    own = ranks.Ranks(group, GPU)
    assert own.has_nccl and own._device == GPU
    monkeypatch.setattr(ranks.torch, "zeros", lambda *size, device: device)
    monkeypatch.setattr(ranks.dist, "all_reduce", lambda *given, **named: type("Work", (), {"wait": lambda self: None})())
    assert own.own == 4711
    on_host = ranks.Ranks(group, HOST)
    assert not on_host.has_nccl and on_host.own is on_host and on_host._device == HOST


def test_other_backends_get_payloads_in_host_memory():
    group = Group(cpu=ProcessGroupGloo(), cuda=ProcessGroupGloo())
    own = ranks.Ranks(group, GPU)
    assert not own.has_nccl and own.own is own and own._device == HOST
    assert ranks.Ranks(Group(cpu=ProcessGroupGloo()), GPU).own is not None


@pytest.mark.parametrize("device, backends", [(HOST, {"cuda": ProcessGroupNCCL()}), (GPU, {"xpu": object()}), (GPU, {})])
def test_a_backend_that_cannot_reach_the_parameters_is_rejected(device, backends):
    with pytest.raises(ValueError, match=f"backend nccl, which cannot reach parameters on {device}; initialize it with .*'gloo'"):
        ranks.Ranks(Group(**backends), device)
    ranks.Ranks(Group(size=1, **backends), device)  # exchanges nothing


def test_nccl_without_a_communicator_is_an_error(monkeypatch):
    group = Group(cuda=type("ProcessGroupNCCL2", (), {})())
    monkeypatch.setattr(ranks.torch, "zeros", lambda *size, device: device)
    monkeypatch.setattr(ranks.dist, "all_reduce", lambda *given, **named: type("Work", (), {"wait": lambda self: None})())
    with pytest.raises(RuntimeError, match="has no NCCL communicator for cuda:1"):
        ranks.Ranks(group, GPU).own  # noqa: B018


def test_ranks_whose_group_was_destroyed_are_not_called(monkeypatch):
    group = Group(cuda=ProcessGroupNCCL())
    own = ranks.Ranks(group, GPU)
    own.require_alive()

    def destroyed(group):
        raise RuntimeError("Default process group has not been initialized")

    monkeypatch.setattr(ranks.dist, "get_backend", destroyed)  # something else still holds it
    with pytest.raises(RuntimeError, match="the process group has been destroyed; call .*destroy_process_group.. after"):
        own.require_alive()
    gone = weakref.ref(group)
    del group
    assert gone() is None
    with pytest.raises(RuntimeError, match="the process group has been destroyed"):
        own.require_alive()
