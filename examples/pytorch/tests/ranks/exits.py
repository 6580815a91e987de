"""Ends a training in one of several orders, as programs do.

    exits.py ORDER [DEVICE]

ORDER: what ends first. `optimizer`; `group`, while the optimizer lives, as in programs that keep it in a global variable; `held_group`,
which something else still holds; or `interpreter`, in which nothing is ended by the program. DEVICE: cpu, over Gloo, or cuda:0, over NCCL
with ranks that share a GPU.
"""

import os
import sys
import weakref

order, device = sys.argv[1], [*sys.argv, "cpu"][2]
if device != "cpu":  # before the first call of NCCL; see docs/how-to/nccl.md
    os.environ["NCCL_HOSTID"] = f"slamb-rank-{os.environ['RANK']}"
    for name, value in {"SOCKET_IFNAME": "lo", "NET": "Socket", "IB_DISABLE": "1", "P2P_DISABLE": "1", "SHM_DISABLE": "1"}.items():
        os.environ.setdefault(f"NCCL_{name}", value)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import slamb.torch  # noqa: E402

torch.set_num_threads(1)
dist.init_process_group("gloo" if device == "cpu" else "nccl")
own = torch.nn.Parameter(torch.zeros(10, device=device))
optimizer = slamb.torch.AdamW([own], compressor="int8")
for step in range(2):
    own.grad = torch.full((10,), float(dist.get_rank() + step), device=device)
    optimizer.step()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 4).to(device))
model.register_comm_hook(None, slamb.torch.compression_hook("int8"))
model(torch.ones(2, 3, device=device)).sum().backward()


def require_refused(call):
    before = own.detach().clone()
    try:
        call()
    except (RuntimeError, ValueError, AssertionError) as error:
        print("refused:", type(error).__name__, error, flush=True)
        assert torch.equal(own.detach(), before)
    else:
        raise AssertionError("a call without a process group was taken")


if order == "optimizer":
    state = optimizer.state_dict()
    del optimizer
    dist.destroy_process_group()
elif order == "group":
    del model  # it holds the group
    group = weakref.ref(dist.group.WORLD)
    dist.destroy_process_group()
    assert group() is None  # so its threads have ended
    require_refused(optimizer.step)
elif order == "held_group":
    held = dist.group.WORLD  # as DistributedDataParallel does too
    dist.destroy_process_group()
    if device == "cpu":  # Gloo's works as long as it is held
        optimizer.step()
    else:
        require_refused(optimizer.step)
        require_refused(optimizer.synchronize_parameters)
        require_refused(optimizer.statistics)
        require_refused(lambda: model(torch.ones(2, 3, device=device)).sum().backward())
else:
    assert order == "interpreter"
print("ended", flush=True)
