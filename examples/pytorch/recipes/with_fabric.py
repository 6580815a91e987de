"""A loop with Lightning's Fabric. Lines that slamb adds or changes end in "# slamb".

torchrun --nproc_per_node 2 with_fabric.py FOLDER [--resume]
"""

import os
import sys

from lightning import Fabric

import slamb.torch  # slamb
from model import Model, batches

STEPS, SAVED = 80, 40


def train(folder, resume=False):
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    fabric = Fabric(accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto")
    fabric.launch()
    model = Model()
    optimizer = slamb.torch.Lamb(model.parameters(), lr=0.01, compressor="int4", max_gradient_norm=1.0)  # slamb
    model, optimizer = fabric.setup(model, optimizer)
    slamb.torch.keep_gradients_local(model)  # slamb
    state, first = {"model": model, "optimizer": optimizer}, 0
    if resume:
        fabric.load(f"{folder}/fabric.ckpt", state)
        first = SAVED
    for step, batch in enumerate(batches(first, STEPS, fabric.global_rank, fabric.world_size), first + 1):
        optimizer.zero_grad()
        loss = model(**batch)["loss"]
        fabric.backward(loss)
        optimizer.step()
        if step % 20 == 0:
            fabric.print(f"step {step}: loss {loss.item():.6f}")
        if step == SAVED:
            fabric.save(f"{folder}/fabric.ckpt", state)
    return model.module, optimizer


if __name__ == "__main__":
    train(sys.argv[1], resume="--resume" in sys.argv)
