"""Models whose parameters are cut over ranks, by FSDP2 and tensor parallelism, and their trainings."""

import torch
import torch.distributed as dist

from checks import gather, noise, rank, size

NEEDS = (2, 6)  # torch.distributed.fsdp.fully_shard is public


class Block(torch.nn.Module):
    """A layer of a transformer that predicts the next token. Keys have no bias: its gradient is rounding alone, which Adam follows."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width, bias=False), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.before_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = (one.transpose(1, 2) for one in parts.unbind(2))
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(torch.nn.functional.gelu(self.up(self.before_mlp(x))))


class Transformer(torch.nn.Module):
    def __init__(self, tokens=32, width=24, layers=2, heads=2, length=16):
        super().__init__()
        self.tokens, self.length = tokens, length
        self.embedding, self.place = torch.nn.Embedding(tokens, width), torch.nn.Embedding(length, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, tokens, bias=False)

    def forward(self, text):
        x = self.embedding(text) + self.place.weight[: text.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def loss(self, step, of_rank):
        """Of a batch of texts that count upwards from a random token, by a random stride."""
        random = torch.Generator().manual_seed(1000 * step + of_rank)
        start, stride = (torch.randint(1, n, (4, 1), generator=random) for n in (self.tokens, 4))
        text = (start + stride * torch.arange(self.length + 1)) % self.tokens
        said = self(text[:, :-1])
        return torch.nn.functional.cross_entropy(said.flatten(0, 1), text[:, 1:].flatten())


class Mlp(torch.nn.Module):
    """With a norm that all ranks of tensor parallelism have whole."""

    def __init__(self, width=8, hidden=12):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up, self.down = torch.nn.Linear(width, hidden), torch.nn.Linear(hidden, width)

    def forward(self, x):
        return self.down(torch.tanh(self.up(self.norm(x))))

    def loss(self, step, of_rank):
        x, wanted = noise((4, 5, 8), 30, step, of_rank), noise((4, 5, 8), 31, step, of_rank)
        return (self(x) - wanted).square().mean()


class Small(torch.nn.Module):
    """With dimensions 1 and 3, so that ranks have uneven parts, and none."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = torch.nn.Linear(5, 3), torch.nn.Linear(3, 7), torch.nn.Linear(7, 1)

    def forward(self, x):
        return self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))

    def loss(self, step, of_rank):
        return (self(noise((6, 5), 32, step, of_rank)) - 1.0).square().mean()


def made(kind, **options):
    """A model with the same parameters on all ranks. Those are of very different size, as are then those of ranks."""
    torch.manual_seed(1)
    model = kind(**options)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1 and p.shape[0] > 1:
                p[: p.shape[0] // 2] *= 3.0
    return model


def mesh_of(*sizes, names=("replicate", "shard")):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import debug

    # It has the names of process groups, which other checks may have destroyed.
    getattr(debug, "_clear_sharding_prop_cache", lambda: None)()
    return init_device_mesh("cpu", sizes, mesh_dim_names=names[: len(sizes)])


def line(name="shard"):
    """A mesh of all ranks."""
    return mesh_of(size(), names=(name,))


def split(model, mesh):
    """By FSDP2."""
    from torch.distributed.fsdp import fully_shard

    for block in getattr(model, "blocks", []):
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def parallel(model, mesh):
    """An Mlp by tensor parallelism. Its norm stays as it is; a bias is a DTensor that all ranks have whole."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    return parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def train(model, optimizer, steps, of_rank=None, each=lambda: None):
    """The losses of these steps, their mean over all ranks."""
    losses = []
    for step in steps:
        optimizer.zero_grad()
        loss = model.loss(step, rank() if of_rank is None else of_rank)
        loss.backward()
        each()
        optimizer.step()
        losses.append(float(loss.detach()))
    return [sum(of_step) / size() for of_step in zip(*gather(losses))]


def compute_scaled(model, optimizer, scaler, step, of_rank, overflows):
    """Computes gradients of the scaled loss. If `overflows`, rank 1 finds an infinite one among its parts."""
    optimizer.zero_grad()
    scaler.scale(model.loss(step, of_rank)).backward()
    if overflows and rank() == 1:
        next(one for one in local(p.grad for p in model.parameters() if p.grad is not None) if one.numel() > 0).fill_(float("inf"))


def whole(tensors):
    """The values of tensors, collected from all ranks that have a part."""
    return [t.full_tensor().detach() if hasattr(t, "full_tensor") else t.detach().clone() for t in tensors]


def local(tensors):
    """This rank's parts."""
    return [t.to_local().detach() if hasattr(t, "to_local") else t.detach() for t in tensors]


def groups_of(mesh):
    """The arguments of an optimizer."""
    return {"process_group": mesh["replicate"].get_group(), "shard_group": mesh["shard"].get_group()}


def same_folder():
    import tempfile

    folder = [tempfile.mkdtemp() if rank() == 0 else None]
    dist.broadcast_object_list(folder)
    return folder[0]
