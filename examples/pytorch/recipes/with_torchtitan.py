"""The containers of torchtitan for optimizers and schedules. fully_shard cuts the model over the ranks of a machine, and the optimizer
exchanges between machines. Lines that slamb adds or changes end in "# slamb".

torchrun --nproc_per_node 4 with_torchtitan.py FOLDER [--resume]
"""

import sys
from dataclasses import dataclass

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig

import slamb.torch  # slamb
from model import Model, batches

STEPS, SAVED, SHARDS = 80, 40, 2


class Optimizers(OptimizersContainer):  # slamb
    @dataclass(kw_only=True, slots=True)
    class Config(OptimizersContainer.Config):
        pass

    _resolve_optimizer_factory = staticmethod(lambda name: getattr(slamb.torch, name))  # slamb


def train(folder, resume=False, compressor="int4"):
    mesh = init_device_mesh("cpu", (dist.get_world_size() // SHARDS, SHARDS), mesh_dim_names=("dp_replicate", "fsdp"))
    model = Model()
    fully_shard(model, mesh=mesh["fsdp"])  # slamb: without "dp_replicate"
    exchange = {"process_group": mesh["dp_replicate"].get_group(), "compressor": compressor, "max_gradient_norm": 1.0}
    optimizers = Optimizers.Config(
        param_groups=[ParamGroupConfig(pattern=".*", optimizer_name="Lamb", optimizer_kwargs={"lr": 0.01})],
        optimizer_factory_kwargs_by_name={"Lamb": exchange},  # slamb
    ).build(model_parts=[model])
    schedulers = LRSchedulersContainer.Config(warmup_steps=10).build(optimizers=optimizers, training_steps=STEPS)
    states = {"model": model, "optimizers": optimizers, "schedulers": schedulers}
    if resume:
        dcp.load(states, checkpoint_id=folder)
    first = SAVED if resume else 0
    for step, batch in enumerate(batches(first, STEPS, dist.get_rank(), dist.get_world_size()), first + 1):
        optimizers.zero_grad()
        loss = model(**batch)["loss"]
        loss.backward()
        optimizers.step()
        schedulers.step()
        if step % 20 == 0 and dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.6f}")
        if step == SAVED and not resume:
            dcp.save(states, checkpoint_id=folder)
    return model, optimizers


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(sys.argv[1], resume="--resume" in sys.argv)
    dist.destroy_process_group()
