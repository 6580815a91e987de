"""Trains a convolutional network on images of handwritten digits, on several ranks.

    pip install "./examples/pytorch[train]"
    torchrun --nproc_per_node 4 examples/pytorch/train_images.py --method slamb --lr 0.016 --out runs/slamb

The data is examples/data/digits.csv: 1,797 images of 8 × 8 pixels. Every fifth is for validation. The validation loss is the cross
entropy.

The folder --out receives log.csv, a plot, and checkpoints. --help lists the options and the methods.
"""

import argparse
import hashlib
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from training.loop import main

DATA = Path(__file__).parent.parent / "data" / "digits.csv"


class ConvolutionalNetwork(nn.Module):
    """Three convolutions with group normalization, of which two are followed by pooling, and two linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.GroupNorm(8, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.GroupNorm(8, width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.GroupNorm(8, 2 * width),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classes = nn.Sequential(nn.Flatten(), nn.Linear(8 * width, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """
        :param x: batch × 1 × 8 × 8, in [0, 1]
        :return: logits, batch × 10
        """
        return self.classes(self.features(x))


def read_digits(file: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and digits, in the order of a hash."""
    lines = sorted(file.read_text(encoding="ascii").split(), key=lambda line: hashlib.sha256(line.encode()).digest())
    rows = torch.tensor([[int(number) for number in line.split(",")] for line in lines])
    return rows[:, :64].view(-1, 1, 8, 8) / 16.0, rows[:, 64]


class Images:
    """The task of `training.loop`."""

    measure = "cross_entropy"  # the first of `measures`
    measure_text = "validation loss, cross entropy"

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        images, digits = read_digits(DATA)
        is_for_validation = torch.arange(len(images)) % 5 == 0
        self.train = images[~is_for_validation], digits[~is_for_validation]
        self.validation = images[is_for_validation], digits[is_for_validation]
        self.description = f"{len(self.train[0])} images for training, {len(self.validation[0])} for validation"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--width", type=int, default=64, help="channels of the first convolution, a multiple of 8 (64)")
        parser.set_defaults(batch=16, steps=300)

    def make_model(self) -> nn.Module:
        return ConvolutionalNetwork(self.arguments.width)

    def batch(self, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Images at random, each moved by at most a pixel in each direction."""
        images, digits = self.train
        chosen = torch.randint(len(images), (self.arguments.batch,), generator=generator)
        moves = torch.randint(3, (self.arguments.batch, 2), generator=generator).tolist()
        padded = functional.pad(images[chosen], (1, 1, 1, 1))
        moved = [image[:, down : down + 8, right : right + 8] for image, (down, right) in zip(padded, moves)]
        return torch.stack(moved), digits[chosen]

    def validation_batches(self, rank: int, ranks: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        images, digits = self.validation
        return [(images[rank::ranks], digits[rank::ranks])]

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits, targets)

    def measures(self, logits: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "cross_entropy": functional.cross_entropy(logits, targets),
            "accuracy": (logits.argmax(1) == targets).double().mean(),
        }


if __name__ == "__main__":
    main(Images, __doc__)
