"""Wrappers of optimizers, as well-known implementations make them: SAM, averages of weights, and Lookahead."""

import collections

import pytest
import torch

from processes import call
from training import HALF, OPTIMIZERS, STEPS, Model, batch, bits, make, steps_taken


class Sam(torch.optim.Optimizer):
    """SAM, arXiv 2010.01412. It shares param_groups with its base, keeps the weights in its own state, and gives parameters
    other memory in each step."""

    def __init__(self, parameters, make_base, rho=0.05):
        super().__init__(parameters, {"rho": rho})
        self.base = make_base(self.param_groups)
        self.param_groups = self.base.param_groups
        self.defaults.update(self.base.defaults)

    @torch.no_grad()
    def step(self, closure):
        closure = torch.enable_grad()(closure)
        loss = closure()
        parameters = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in parameters]).norm()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.data.clone()
                p.add_(p.grad * (group["rho"] / (norm + 1e-12)))
        self.zero_grad()
        closure()
        for p in parameters:
            p.data = self.state[p]["old"]
        self.base.step()
        return loss

    def state_dict(self):
        return {"own": super().state_dict(), "base": self.base.state_dict()}

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict["own"])
        self.base.load_state_dict(state_dict["base"])
        self.param_groups = self.base.param_groups


class Lookahead(torch.optim.Optimizer):
    """Lookahead, arXiv 1907.08610. The slow weights live in the state of its base, and its options in the base's groups. It
    does not call the constructor of Optimizer."""

    def __init__(self, base, alpha=0.5, interval=3):
        self.base = base
        self.param_groups = base.param_groups
        self.defaults = base.defaults
        self.state = collections.defaultdict(dict)
        for group in base.param_groups:
            group.setdefault("alpha", alpha)
            group.setdefault("interval", interval)
            group.setdefault("fast_steps", 0)

    @torch.no_grad()
    def step(self, closure):
        loss = self.base.step(closure)
        for group in self.base.param_groups:
            group["fast_steps"] += 1
            if group["fast_steps"] % group["interval"] != 0:
                continue
            for p in group["params"]:
                its = self.base.state[p]
                if "slow" not in its:
                    its["slow"] = torch.empty_like(p).copy_(p)
                its["slow"].add_(p - its["slow"], alpha=group["alpha"])
                p.copy_(its["slow"])
        return loss

    def zero_grad(self):
        self.base.zero_grad()

    def state_dict(self):
        return self.base.state_dict()

    def load_state_dict(self, state_dict):
        self.base.load_state_dict(state_dict)
        self.param_groups = self.base.param_groups


class Average(torch.optim.Optimizer):
    """An average of weights in the state of its base. Its averages are shown by `averages()`."""

    def __init__(self, base, decay=0.9):
        self.base, self.decay = base, decay
        self.param_groups, self.state, self.defaults = base.param_groups, base.state, base.defaults

    @torch.no_grad()
    def step(self, closure):
        loss = self.base.step(closure)
        for p in self._parameters():
            its = self.base.state[p]
            its.setdefault("average", p.detach().clone()).lerp_(p, 1 - self.decay)
        return loss

    def averages(self):
        return [self.base.state[p]["average"] for p in self._parameters()]

    def zero_grad(self):
        self.base.zero_grad()

    def state_dict(self):
        return self.base.state_dict()

    def load_state_dict(self, state_dict):
        self.base.load_state_dict(state_dict)

    def _parameters(self):
        return [p for group in self.base.param_groups for p in group["params"]]


def make_wrapped(wrapper, name, model):
    def make_base(parameters):
        return torch.optim.AdamW(parameters, lr=1e-2) if name == "torch" else make(name, parameters)

    if wrapper == "sam":
        return Sam(model.parameters(), make_base)
    if wrapper == "averaged_model":
        return make_base(model.parameters())
    return {"lookahead": Lookahead, "average": Average}[wrapper](make_base(model.parameters()))


def train(wrapper, name, folder, resume=False, seed=1):
    """Trains all steps, with a save in between in `folder`; or continues from there. Each rank has a file of its own."""
    distributed = torch.distributed.is_initialized()
    rank, ranks = (torch.distributed.get_rank(), torch.distributed.get_world_size()) if distributed else (0, 1)
    model = Model(seed)
    optimizer = make_wrapped(wrapper, name, model)
    decay = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=decay) if wrapper == "averaged_model" else None

    def steps(first, last):
        for step in range(first, last):

            def closure(step=step):
                optimizer.zero_grad()
                loss = model(**batch(step, rank, ranks))["loss"]
                loss.backward()
                return loss

            assert optimizer.step(closure).item() > 0
            if averaged is not None:
                averaged.update_parameters(model)

    file = f"{folder}/rank{rank}.pt"
    parts = {"model": model, "optimizer": optimizer, **({"averaged": averaged} if averaged is not None else {})}
    if resume:
        for name_of_part, state in torch.load(file).items():
            parts[name_of_part].load_state_dict(state)
    else:
        steps(0, HALF)
        torch.save({name_of_part: part.state_dict() for name_of_part, part in parts.items()}, file)
    steps(HALF, STEPS)
    base = getattr(optimizer, "base", optimizer)
    kept = averaged if averaged is not None else optimizer.averages() if wrapper == "average" else []
    values = [p.detach().numpy().copy() for p in model.parameters()]
    return {"parameters": bits(model), "averages": bits(kept), "steps": steps_taken(base), "values": values}


def of_bits(results):
    return [{key: value for key, value in one.items() if key != "values"} for one in results]


WRAPPERS = ("sam", "averaged_model", "average", "lookahead")


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_resumed_training_has_the_same_bits(wrapper, name, ranks, tmp_path):
    whole = call(ranks, train, wrapper, name, tmp_path)
    assert of_bits(whole) == of_bits(call(ranks, train, wrapper, name, tmp_path, resume=True, seed=2))
    assert [one["steps"] for one in whole] == [STEPS] * ranks
    if ranks > 1 and name != "slamb":
        assert whole[0]["parameters"] == whole[1]["parameters"]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapped_optimizer_follows_torch(wrapper, tmp_path):
    (mine,) = call(1, train, wrapper, "adamw", tmp_path)
    (theirs,) = call(1, train, wrapper, "torch", tmp_path)
    assert max(abs(a - b).max() for a, b in zip(mine["values"], theirs["values"])) < 1e-5
