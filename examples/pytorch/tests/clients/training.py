"""What the tests of clients share: a small model, its data, the optimizers, and comparisons of bits."""

import torch

import slamb.torch

STEPS = 12
HALF = 6  # steps before a save

# With settings by which six steps reach every phase, and a single rank has compression errors.
OPTIMIZERS = {
    "adamw": (slamb.torch.AdamW, {}),
    "lamb": (slamb.torch.Lamb, {}),
    "lamb+int8": (slamb.torch.Lamb, {"compressor": "int8", "compress_single_rank": True}),
    "slamb": (slamb.torch.Slamb, {"k": 0.25, "beta3": 0.8, "local_steps": 4, "dense_below": 0}),
    "one_bit_adam": (slamb.torch.OneBitAdam, {"warm_up_steps": 3, "compress_single_rank": True}),
}
# With several ranks, each rank has another state.
DIFFER = ("lamb+int8", "slamb", "one_bit_adam")
# With these settings the parameters of all ranks are equal after the last step: SLAMB exchanges them in the first and the twelfth.
WITH_EQUAL_END = {"slamb": {"local_steps": 11}}


def make(name, parameters, **settings):
    kind, of_kind = OPTIMIZERS[name]
    return kind(parameters, **{"lr": 1e-2, **of_kind, **settings})


def make_schedule(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1.0 + step / 5))


class Model(torch.nn.Module):
    """212 parameters. The output is a dictionary, as the Trainer of transformers needs it."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))

    def forward(self, x, y):
        return {"loss": (self.layers(x) - y).square().mean()}


class Data(torch.utils.data.Dataset):
    """Examples x and y, the same at every call."""

    def __init__(self, count=96):
        generator = torch.Generator().manual_seed(17)
        self.x = torch.randn(count, 8, generator=generator)
        self.y = torch.sin(self.x @ torch.randn(8, 4, generator=generator))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "y": self.y[i]}


def batch(step, rank=0, ranks=1, size=4):
    """The batch of a rank in a step."""
    data = Data()
    first = (step * ranks + rank) * size % len(data)
    return {"x": data.x[first : first + size], "y": data.y[first : first + size]}


def bits(model_or_parameters):
    """The bytes of all parameters, by name or number."""
    if isinstance(model_or_parameters, torch.nn.Module):
        named = model_or_parameters.named_parameters()
    else:
        named = enumerate(model_or_parameters)
    return {name: p.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for name, p in named}


def steps_taken(optimizer):
    """The number of steps, which must be the same for all parameters."""
    (steps,) = {float(entry["step"]) for entry in optimizer.state.values()}
    return steps
