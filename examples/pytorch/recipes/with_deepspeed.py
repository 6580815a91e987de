"""DeepSpeed's engine, without ZeRO, which has had no 1-bit optimizers since 0.19.7. Lines that slamb adds or changes end in
"# slamb".

torchrun --nproc_per_node 2 with_deepspeed.py FOLDER [--resume]
"""

import sys

import deepspeed
import torch.distributed as dist

import slamb.torch  # slamb
from model import Model, batches

STEPS, SAVED = 80, 40
CONFIG = {
    "train_micro_batch_size_per_gpu": 16,
    "zero_optimization": {"stage": 0},
    "gradient_clipping": 0.0,  # slamb: by default DeepSpeed clips each rank's own gradient by 1.0
    "torch_autocast": {"enabled": False},  # True, with "dtype": "bfloat16" or "float16": the latter scales the loss
}


def train(folder, resume=False, config=CONFIG):
    model = Model()
    optimizer = slamb.torch.OneBitLamb(model.parameters(), lr=0.01, warm_up_steps=20, max_gradient_norm=1.0)  # slamb
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    slamb.torch.keep_gradients_local(engine)  # slamb
    slamb.torch.consolidate_on_save(engine)  # slamb: DeepSpeed saves the state of rank 0 alone
    first = 0
    if resume:
        engine.load_checkpoint(folder)
        first = engine.global_steps
    for step, batch in enumerate(batches(first, STEPS, dist.get_rank(), dist.get_world_size()), first + 1):
        loss = engine(**batch)["loss"]
        engine.backward(loss)
        engine.step()
        if step % 20 == 0 and dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.6f}")
        if step == SAVED:
            engine.save_checkpoint(folder)
    return model, optimizer


if __name__ == "__main__":
    deepspeed.init_distributed("gloo")
    train(sys.argv[1], resume="--resume" in sys.argv)
    dist.destroy_process_group()
