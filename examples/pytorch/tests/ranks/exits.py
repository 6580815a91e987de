"""Ends while an optimizer lives, as programs do that keep it in a global variable."""

import weakref

import torch
import torch.distributed as dist

import slamb.torch

torch.set_num_threads(1)
dist.init_process_group("gloo")
own = torch.nn.Parameter(torch.zeros(10))
optimizer = slamb.torch.AdamW([own], compressor="int8")
for step in range(2):
    own.grad = torch.full((10,), float(dist.get_rank() + step))
    optimizer.step()
group = weakref.ref(dist.group.WORLD)
dist.destroy_process_group()
assert group() is None  # so its threads have ended
