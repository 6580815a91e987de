"""Trains a language model of bytes on the sources of Python's standard library, on several ranks.

    pip install "./examples/pytorch[train]"
    torchrun --nproc_per_node 4 examples/pytorch/train_lm.py --method slamb --lr 0.016 --out runs/slamb

The model is a GPT: `--layers` blocks of attention and a two-layer perceptron. The data is installed with Python, so nothing is
downloaded. One file of sixteen is for validation. The validation loss is in bits per byte.

The folder --out receives log.csv, a plot, and checkpoints. --help lists the options and the methods.
"""

import argparse
import hashlib
import math
import sysconfig
from collections.abc import Collection
from pathlib import Path
from typing import Optional

import torch
from torch import nn
from torch.nn import functional

from training.loop import main

# Folders of the standard library that some distributions leave out, or that hold no Python of its own.
_LEFT_OUT = {"__pycache__", "dist-packages", "ensurepip", "idlelib", "lib2to3", "lib-dynload", "site-packages", "test", "tests", "turtledemo"}


class Block(nn.Module):
    """Attention to earlier bytes, then a perceptron, each added to its input."""

    def __init__(self, width: int, heads: int, biases: bool) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=biases)
        self.attended = nn.Linear(width, width, bias=biases)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=biases)
        self.down = nn.Linear(4 * width, width, bias=biases)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        by_head = self.queries_keys_values(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        queries, keys, values = by_head.permute(2, 0, 3, 1, 4)
        scores = queries @ keys.transpose(-1, -2) / math.sqrt(width // self.heads) + mask
        attended = (scores.softmax(-1) @ values).transpose(1, 2).reshape(batch, length, width)
        x = x + self.attended(attended)
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """Predicts the next byte at each position."""

    def __init__(self, width: int, layers: int, heads: int, context: int, biases: bool = True) -> None:
        """
        :param biases: the linear layers of the blocks have some
        """
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, biases) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.next = nn.Linear(width, 256, bias=False)
        self.register_buffer("mask", torch.full((context, context), -math.inf).triu(1), persistent=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                is_added = name.endswith(("attended.weight", "down.weight"))
                nn.init.normal_(p, std=0.02 / (math.sqrt(2 * layers) if is_added else 1.0))
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """
        :param x: int64, batch × length
        :return: logits, batch × length × 256
        """
        length = x.shape[1]
        x = self.bytes(x) + self.positions.weight[:length]
        for block in self.blocks:
            x = block(x, self.mask[:length, :length])
        return self.next(self.norm(x))


Text = tuple[torch.Tensor, torch.Tensor, str]  # bytes for training, for validation, and a hash of both


def read_library() -> Text:
    """The sources of the standard library."""
    return read_sources(Path(sysconfig.get_paths()["stdlib"]), _LEFT_OUT)


def read_sources(root: Path, left_out: Collection[str] = (), enough: float = math.inf) -> Text:
    """The Python sources in a folder.

    A file is for validation if a hash of its name says so, so that a file which another version of Python lacks moves no other.

    :param left_out: names of folders
    :param enough: bytes, after which no more files are read
    :raises ValueError: if there are too few files
    """
    files = sorted(file.relative_to(root) for file in root.rglob("*.py") if not set(left_out) & set(file.relative_to(root).parts))
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    read = 0
    for file in files:
        if read >= enough:
            break
        is_for_validation = hashlib.sha256(file.as_posix().encode()).digest()[0] % 16 == 0
        parts[is_for_validation].append((root / file).read_bytes())
        read += len(parts[is_for_validation][-1])
    texts = [b"".join(part) for part in parts]
    if not all(texts):
        raise ValueError(f"{root} has no Python sources for training, or none for validation, which are one file of sixteen")
    train, validation = (torch.frombuffer(bytearray(text), dtype=torch.uint8) for text in texts)
    return train, validation, hashlib.sha256(b"".join(texts)).hexdigest()[:12]


class LanguageModel:
    """The task of `training.loop`."""

    measure = "bits_per_byte"  # the first of `measures`
    measure_text = "validation loss, bits per byte"

    def __init__(self, arguments: argparse.Namespace, text: Optional[Text] = None) -> None:
        """
        :param text: None: `read_library`
        """
        self.arguments = arguments
        if arguments.width % arguments.heads != 0:
            raise ValueError(f"--heads: {arguments.heads} does not divide --width {arguments.width}")
        self.train, self.validation, self.hash = read_library() if text is None else text
        if min(len(self.train), len(self.validation)) < arguments.context + 2:
            raise ValueError(f"--context: {arguments.context} bytes are more than the text for training or validation has")
        self.description = f"{len(self.train)} bytes for training, {len(self.validation)} for validation, hash {self.hash}"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--width", type=int, default=128, help="of the model (128)")
        parser.add_argument("--layers", type=int, default=5, help="(5)")
        parser.add_argument("--heads", type=int, default=4, help="(4)")
        parser.add_argument("--context", type=int, default=128, help="bytes of a sequence (128)")
        parser.add_argument("--biases", choices=("yes", "no"), default="yes", help="in the linear layers of blocks (yes)")
        parser.set_defaults(batch=4, steps=600)

    def make_model(self) -> nn.Module:
        a = self.arguments
        return Gpt(a.width, a.layers, a.heads, a.context, a.biases == "yes")

    def batch(self, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Sequences that begin at random places, and the byte after each of their bytes."""
        starts = torch.randint(len(self.train) - self.arguments.context - 1, (self.arguments.batch,), generator=generator)
        return self._sequences(self.train, starts)

    def validation_batches(self, rank: int, ranks: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """This rank's part of 128 sequences that are spread evenly over the text."""
        last = len(self.validation) - self.arguments.context - 1
        starts = torch.linspace(0, last, 128, dtype=torch.float64).to(torch.int64)[rank::ranks]
        return [self._sequences(self.validation, part) for part in starts.split(8)]

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean over bytes, in nats."""
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def measures(self, logits: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"bits_per_byte": self.loss(logits, targets) / math.log(2.0)}

    def _sequences(self, text: torch.Tensor, starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        places = starts[:, None] + torch.arange(self.arguments.context + 1)
        sequences = text[places].to(torch.int64)
        return sequences[:, :-1], sequences[:, 1:]


if __name__ == "__main__":
    main(LanguageModel, __doc__)
