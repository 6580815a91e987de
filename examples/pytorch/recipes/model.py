"""The model and the data of the recipes: what a user's program has already."""

import torch


class Model(torch.nn.Module):
    """A small network that returns its loss, as the models of transformers do."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8))

    def forward(self, x, labels):
        return {"loss": torch.nn.functional.mse_loss(self.layers(x), labels)}


class Examples(torch.utils.data.Dataset):
    """640 examples of 32 numbers, each with 8 labels that are a function of them."""

    def __init__(self):
        generator = torch.Generator().manual_seed(2)
        self.x = torch.randn(640, 32, generator=generator)
        self.labels = torch.sin(self.x @ torch.randn(32, 8, generator=generator) / 4)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "labels": self.labels[i]}


def batches(first, last, rank=0, ranks=1):
    """The batches of a rank from step `first` to `last` - 1."""
    examples = Examples()
    for step in range(first, last):
        indices = [((step * ranks + rank) * 16 + i) % len(examples) for i in range(16)]
        yield {"x": examples.x[indices], "labels": examples.labels[indices]}
