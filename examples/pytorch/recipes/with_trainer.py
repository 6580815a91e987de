"""The Trainer of transformers. Lines that slamb adds or changes end in "# slamb".

torchrun --nproc_per_node 2 with_trainer.py FOLDER [--resume]
"""

import sys

import torch.distributed as dist
import transformers

import slamb.torch  # slamb
from model import Examples, Model

STEPS, SAVED = 80, 40


def train(folder, resume=False):
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        save_steps=SAVED,
        logging_steps=20,
        per_device_train_batch_size=16,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,  # slamb: by default the Trainer clips each rank's own gradient
        use_cpu=True,
        report_to="none",
    )
    trainer = transformers.Trainer(
        model=Model(),
        args=arguments,
        train_dataset=Examples(),
        optimizer_cls_and_kwargs=(slamb.torch.Lamb, {"lr": 0.01, "compressor": "int4", "max_gradient_norm": 1.0}),  # slamb
    )
    slamb.torch.keep_gradients_local(trainer)  # slamb
    slamb.torch.consolidate_on_save(trainer)  # slamb: the Trainer saves the state of rank 0 alone
    trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-{SAVED}" if resume else None)
    return trainer.model, trainer.optimizer


if __name__ == "__main__":
    train(sys.argv[1], resume="--resume" in sys.argv)
    if dist.is_initialized():
        dist.destroy_process_group()
