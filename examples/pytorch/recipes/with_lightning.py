"""The Trainer of Lightning, with automatic optimization, or, with --manual, with manual optimization. Lines that slamb adds or
changes end in "# slamb".

torchrun --nproc_per_node 2 with_lightning.py FOLDER [--resume] [--manual]
"""

import os
import sys

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import slamb.torch  # slamb
from model import Examples, Model

STEPS, SAVED = 80, 40


class Automatic(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Model()

    def configure_optimizers(self):
        return slamb.torch.Lamb(self.parameters(), lr=0.01, compressor="int4", max_gradient_norm=1.0)  # slamb

    def training_step(self, batch):
        loss = self.model(**batch)["loss"]
        self.log("loss", loss, prog_bar=True)
        return loss


class Manual(Automatic):
    automatic_optimization = False

    def training_step(self, batch):
        self.optimizers().zero_grad()
        self.manual_backward(super().training_step(batch))
        self.optimizers().step()


def train(folder, resume=False, kind=Automatic):
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    saves = ModelCheckpoint(dirpath=folder, every_n_train_steps=SAVED, save_top_k=-1, filename="{step}")
    strategy = "ddp" if ranks > 1 else "auto"
    trainer = lightning.Trainer(
        accelerator="cpu", devices=ranks, strategy=strategy, max_steps=STEPS, callbacks=[saves], logger=False
    )
    slamb.torch.keep_gradients_local(trainer)  # slamb
    loader = torch.utils.data.DataLoader(Examples(), batch_size=16)
    module = kind()
    trainer.fit(module, loader, ckpt_path=f"{folder}/step={SAVED}.ckpt" if resume else None)
    return module.model, trainer.optimizers[0]


if __name__ == "__main__":
    train(sys.argv[1], "--resume" in sys.argv, Manual if "--manual" in sys.argv else Automatic)
