"""Optimizers of PyTorch that exchange little between ranks.

    import torch
    import slamb.torch

    optimizer = slamb.torch.Slamb(model.parameters(), lr=2e-3, compressor="random_k+int8")

Each is a `torch.optim.Optimizer`. With several processes, `step()` exchanges what the algorithm needs over
`torch.distributed`; so gradients must be each rank's own: leave out `DistributedDataParallel`, or call
`keep_gradients_local(model)`.

They stand in for FusedLAMB and FusedAdam (apex), Lamb (timm), AdamW8bit and LAMB8bit (bitsandbytes), and OnebitAdam, OnebitLamb and
ZeroOneAdam, which DeepSpeed had up to 0.19.6: `from_deepspeed` reads a configuration of DeepSpeed, `load_deepspeed` a checkpoint.

`compression_hook` compresses the gradients that `DistributedDataParallel` averages, for any optimizer.
"""

from slamb.torch._clients import consolidate_on_save, keep_gradients_local
from slamb.torch._deepspeed import from_deepspeed, load_deepspeed
from slamb.torch._hook import CompressionHook, compression_hook
from slamb.torch._optimizer import Optimizer
from slamb.torch._optimizers import AdamW, Lamb, OneBitAdam, OneBitLamb, Slamb, ZeroOneAdam
from slamb.torch._supported import is_supported

__all__ = [
    "AdamW",
    "CompressionHook",
    "Lamb",
    "OneBitAdam",
    "OneBitLamb",
    "Optimizer",
    "Slamb",
    "ZeroOneAdam",
    "compression_hook",
    "consolidate_on_save",
    "from_deepspeed",
    "is_supported",
    "keep_gradients_local",
    "load_deepspeed",
]
