"""A loop with accelerate. Lines that slamb adds or changes end in "# slamb".

accelerate launch --cpu --num_processes 2 with_accelerate.py FOLDER [--resume]
"""

import sys

import torch.distributed as dist
from accelerate import Accelerator

import slamb.torch  # slamb
from model import Model, batches

STEPS, SAVED = 80, 40


def train(folder, resume=False):
    accelerator = Accelerator(cpu=True)
    model = Model()
    optimizer = slamb.torch.Lamb(model.parameters(), lr=0.01, compressor="int4", max_gradient_norm=1.0)  # slamb
    model, optimizer = accelerator.prepare(model, optimizer)
    slamb.torch.keep_gradients_local(model)  # slamb
    slamb.torch.consolidate_on_save(accelerator)  # slamb: accelerate saves the state of rank 0 alone
    first = 0
    if resume:
        accelerator.load_state(str(folder))
        first = SAVED
    for step, batch in enumerate(batches(first, STEPS, accelerator.process_index, accelerator.num_processes), first + 1):
        optimizer.zero_grad()
        loss = model(**batch)["loss"]
        accelerator.backward(loss)
        optimizer.step()
        if step % 20 == 0:
            accelerator.print(f"step {step}: loss {loss.item():.6f}")
        if step == SAVED:
            accelerator.save_state(str(folder))
            accelerator.wait_for_everyone()
    return accelerator.unwrap_model(model), optimizer


if __name__ == "__main__":
    train(sys.argv[1], resume="--resume" in sys.argv)
    if dist.is_initialized():
        dist.destroy_process_group()
