"""Captured steps of several ranks over NCCL, each beside the same steps without a graph, bit for bit.

    torchrun --nproc_per_node 2 examples/pytorch/tests/gpu/graph_ranks.py

Each rank has a GPU, or all share one as docs/how-to/nccl.md describes. Prints one line for each optimizer on rank 0. Exits with 77
and a reason without a GPU, NCCL or a module for it.
"""

import copy
import os
import sys

if os.environ.get("SLAMB_RANKS_SHARE_A_GPU"):  # before the first call of NCCL; see docs/how-to/nccl.md
    os.environ["NCCL_HOSTID"] = f"slamb-rank-{os.environ['RANK']}"
    os.environ["LOCAL_RANK"] = "0"

import torch  # noqa: E402

import slamb.torch  # noqa: E402
from slamb._load import module_for  # noqa: E402

STEPS, WARM_UP = 12, 3
SHAPES = ((130, 70), (129,), (5, 4, 3))

OPTIMIZERS = {
    "AdamW": lambda p: slamb.torch.AdamW(p, lr=1e-2),
    "AdamW, clipped": lambda p: slamb.torch.AdamW(p, lr=1e-2, max_gradient_norm=0.5),
    "Lamb": lambda p: slamb.torch.Lamb(p, lr=1e-2),
    "Lamb, int8": lambda p: slamb.torch.Lamb(p, lr=1e-2, compressor="int8"),
    "Slamb": lambda p: slamb.torch.Slamb(p, lr=1e-2, local_steps=0, dense_below=0),
    "Slamb, int8": lambda p: slamb.torch.Slamb(p, lr=1e-2, local_steps=0, dense_below=0, compressor="random_k+int8"),
    "OneBitAdam": lambda p: slamb.torch.OneBitAdam(p, lr=1e-2, warm_up_steps=2),
    "OneBitLamb": lambda p: slamb.torch.OneBitLamb(p, lr=1e-2, warm_up_steps=2),
}


def make_parameters(device, dtype):
    generator = torch.Generator().manual_seed(3)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(device, dtype)) for shape in SHAPES]


def noise_of(step, rank, device):
    """What the gradients of a rank in a step are made of."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return [torch.randn(shape, generator=generator).to(device) for shape in SHAPES]


def iterate(parameters, optimizer, noise):
    for p, its in zip(parameters, noise):
        p.grad = (0.1 * p.detach().float() + its).to(p.dtype)
    optimizer.step()


def train(make, rank, device, dtype, captures):
    parameters = make_parameters(device, dtype)
    optimizer = make(parameters)
    noise = noise_of(0, rank, device)
    graph = None
    for step in range(STEPS):
        for own, new in zip(noise, noise_of(step, rank, device)):
            own.copy_(new)
        if not captures or step < WARM_UP:
            iterate(parameters, optimizer, noise)
            continue
        if graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # torch's watchdog of NCCL asks for events
                iterate(parameters, optimizer, noise)
        graph.replay()
    optimizer.synchronize_parameters()
    found = [p.detach().clone() for p in parameters], optimizer.statistics()["step"]
    del graph  # before the optimizer, whose memory and communicator it uses
    return found


def capture_with_ranks():
    """Trains with every optimizer that can be captured. To be called on all ranks, in an initialized process group of NCCL.

    :raises AssertionError: if replays and steps have other bits, or ranks differ
    """
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    device = torch.device("cuda", torch.cuda.current_device())
    for name, make in OPTIMIZERS.items():
        for dtype in (torch.float32, torch.bfloat16):
            eager, steps = train(make, rank, device, dtype, captures=False)
            graphed, replayed = train(make, rank, device, dtype, captures=True)
            assert steps == replayed == STEPS, (name, dtype, steps, replayed)
            for a, b in zip(eager, graphed):
                assert torch.equal(a, b), (name, dtype, "replays and steps have other bits")
                of_first = copy.deepcopy(b)
                torch.distributed.broadcast(of_first, 0)
                assert torch.equal(of_first, b), (name, dtype, "ranks differ")
            if rank == 0:
                print(f"{name}, {dtype}: {STEPS - WARM_UP} replays on {size} ranks have the bits of steps", flush=True)


def main():
    try:
        if not torch.cuda.is_available():
            raise ValueError("no GPU")
        if not (torch.distributed.is_available() and torch.distributed.is_nccl_available()):
            raise ValueError("torch has no NCCL")
        module_for("cuda")
    except ValueError as missing:
        print(f"skipped: {missing}", file=sys.stderr)
        return 77
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.distributed.init_process_group("nccl")
    try:
        capture_with_ranks()
    finally:
        torch.distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
