"""A loop of one's own with DistributedDataParallel. Lines that slamb adds or changes end in "# slamb".

torchrun --nproc_per_node 2 with_ddp.py FOLDER [--resume]
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import slamb.torch  # slamb
from model import Model, batches

STEPS, SAVED = 80, 40


def train(folder, resume=False):
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    model = Model()
    wrapped = DistributedDataParallel(model) if ranks > 1 else model
    slamb.torch.keep_gradients_local(wrapped)  # slamb
    optimizer = slamb.torch.Lamb(model.parameters(), lr=0.01, compressor="int4", max_gradient_norm=1.0)  # slamb
    os.makedirs(folder, exist_ok=True)
    file, first = f"{folder}/checkpoint-{rank}.pt", 0  # slamb: a file for each rank
    if resume:
        saved = torch.load(file)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = SAVED
    for step, batch in enumerate(batches(first, STEPS, rank, ranks), first + 1):
        optimizer.zero_grad()
        loss = wrapped(**batch)["loss"]
        loss.backward()
        optimizer.step()
        if step % 20 == 0 and rank == 0:
            print(f"step {step}: loss {loss.item():.6f}")
        if step == SAVED:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    return model, optimizer


if __name__ == "__main__":
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    train(sys.argv[1], resume="--resume" in sys.argv)
    if dist.is_initialized():
        dist.destroy_process_group()
