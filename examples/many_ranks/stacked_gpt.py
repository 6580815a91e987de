"""The model of ../pytorch/train_lm.py for many ranks: one product of stacked matrices computes a layer of all of them."""

from __future__ import annotations

import math
from typing import Optional

import torch
from torch import nn
from torch.nn import functional


class StackedGpt:
    """A Gpt of train_lm.py for each rank.

    `parameters` has them by name, matrices first, each ranks × the shape of one rank's, with a gradient.
    """

    def __init__(self, model: nn.Module, ranks: int, dtype: torch.dtype = torch.float32) -> None:
        """
        :param model: a Gpt with the initial parameters of all ranks, on their device
        :param dtype: of activations and products. Parameters, gradients and losses are float32. bfloat16 needs PyTorch 2
        """
        self.dtype = dtype
        self.heads = model.blocks[0].heads
        self.layers = len(model.blocks)
        self.mask = model.mask
        self.parameters: dict[str, torch.Tensor] = {}
        for name, p in sorted(model.named_parameters(), key=lambda named: named[1].dim() <= 1):
            self.parameters[name] = p.detach().expand(ranks, *p.shape).clone().requires_grad_()
            self.parameters[name].grad = torch.zeros_like(self.parameters[name])

    def zero_grad(self) -> None:
        for p in self.parameters.values():
            assert p.grad is not None
            p.grad.zero_()

    def mean_parameters(self) -> dict[str, torch.Tensor]:
        """As those of a single rank."""
        return {name: p.detach().mean(0, keepdim=True) for name, p in self.parameters.items()}

    def drift(self) -> float:
        """The distance of a rank's parameters from the mean, root mean square over ranks, by the norm of the mean."""
        mean = self.mean_parameters()
        away = sum((p.detach() - mean[name]).square().sum().item() / len(p) for name, p in self.parameters.items())
        return math.sqrt(away / sum(m.square().sum().item() for m in mean.values()))

    def losses(
        self, inputs: torch.Tensor, targets: torch.Tensor, parameters: Optional[dict[str, torch.Tensor]] = None
    ) -> torch.Tensor:
        """The mean over the bytes of each rank, in nats.

        :param inputs, targets: int64, ranks × batch × length
        :param parameters: None: the own ones
        """
        logits = self.logits(inputs, self.parameters if parameters is None else parameters)
        of_bytes = functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
        return of_bytes.view(len(targets), -1).mean(1)

    def logits(self, x: torch.Tensor, parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        """
        :param x: int64, ranks × batch × length
        :return: ranks × batch · length × 256
        """
        ranks, batch, length = x.shape
        embedding = parameters["bytes.weight"]
        width = embedding.shape[2]
        rows = x + 256 * torch.arange(ranks, device=x.device)[:, None, None]  # of the embeddings of all ranks
        h = functional.embedding(rows, embedding.view(ranks * 256, width))
        h = (h + parameters["positions.weight"][:, None, :length]).to(self.dtype).view(ranks, batch * length, width)
        for block in range(self.layers):
            own = {name: p for name in _BLOCK if (p := parameters.get(f"blocks.{block}.{name}")) is not None}
            h = h + self._attended(_normed(h, own, "norm1"), own, length)
            up = functional.gelu(_linear(_normed(h, own, "norm2"), own, "up"))
            h = h + _linear(up, own, "down")
        return _linear(_normed(h, parameters, "norm"), parameters, "next").float()

    def _attended(self, x: torch.Tensor, own: dict[str, torch.Tensor], length: int) -> torch.Tensor:
        ranks, _, width = x.shape
        by_head = _linear(x, own, "queries_keys_values").view(-1, length, 3, self.heads, width // self.heads)
        queries, keys, values = by_head.permute(2, 0, 3, 1, 4)
        if self.dtype == torch.float32:
            scores = queries @ keys.transpose(-1, -2) / math.sqrt(width // self.heads) + self.mask[:length, :length]
            attended = scores.softmax(-1) @ values
        else:
            attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return _linear(attended.transpose(1, 2).reshape(ranks, -1, width), own, "attended")


_BLOCK = [
    f"{layer}.{kind}"
    for layer in ("norm1", "queries_keys_values", "attended", "norm2", "up", "down")
    for kind in ("weight", "bias")
]


def _linear(x: torch.Tensor, own: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """
    :param x: ranks × bytes × inputs
    """
    weight = own[f"{name}.weight"].to(x.dtype).transpose(1, 2)
    bias = own.get(f"{name}.bias")
    return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias.to(x.dtype)[:, None], x, weight)


def _normed(x: torch.Tensor, own: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    weight, bias = (own[f"{name}.{kind}"].to(x.dtype)[:, None] for kind in ("weight", "bias"))
    return functional.layer_norm(x, x.shape[-1:]) * weight + bias
