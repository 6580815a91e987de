"""Things that torch.optim allows. Each is a training by torch.optim.AdamW and by slamb's optimizers.

`thing(make)` trains with the optimizer that `make(parameters)` returns, and returns the parameters, and facts. All of slamb's
optimizers must have the facts of torch.optim.AdamW, and finite parameters. slamb.torch.AdamW must have its parameters too."""

import copy
import io
import math
import warnings

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

import slamb.torch
from processes import call
from training import OPTIMIZERS, Model, batch, make

NAMES = list(OPTIMIZERS)


def make_torch(parameters, **settings):
    return torch.optim.AdamW(parameters, **{"lr": 1e-2, **settings})


def compare(thing, name):
    """Requires the same facts, and of AdamW the same parameters."""
    expected, facts = thing(make_torch)
    expected = [p.detach().clone() for p in expected]
    parameters, own_facts = thing(lambda parameters, **settings: make(name, parameters, **settings))
    assert own_facts == facts
    assert len(parameters) == len(expected)
    for p, q in zip(parameters, expected):
        assert p.isfinite().all()
        if name == "adamw":
            torch.testing.assert_close(p.detach(), q, rtol=1e-5, atol=1e-6)


def train(model, optimizer, steps=4, first=0, between=lambda step: None):
    for step in range(first, first + steps):
        optimizer.zero_grad()
        model(**batch(step))["loss"].backward()
        optimizer.step()
        between(step)


def parameters_of(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


def saved_and_loaded(value, **options):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **options)


each = pytest.mark.parametrize("name", NAMES)


# 1 ------------------------------------------------------------------------------------------------------- Hooks of steps
@each
def test_hooks_around_steps(name):
    def thing(make):
        model, calls = Model(1), []
        optimizer = make(model.parameters())
        optimizer.register_step_pre_hook(lambda one, args, named: calls.append(("before", one is optimizer)))
        remove = optimizer.register_step_post_hook(lambda one, args, named: calls.append(("after", one is optimizer)))
        every = register_optimizer_step_post_hook(lambda *_: calls.append("global"))
        try:
            train(model, optimizer, 2)
            remove.remove()
            train(model, optimizer, 1, first=2)
        finally:
            every.remove()
        # A hook may give the step a closure.
        count = []
        optimizer.register_step_pre_hook(lambda one, args, named: ((args[0], lambda: count.append(1) or 7.0), {}))
        calls.append(optimizer.step())
        return parameters_of(optimizer), (calls, count)

    compare(thing, name)


# 2 ------------------------------------------------------------------------------------------------------ Hooks of states
@each
def test_hooks_of_states(name):
    def thing(make):
        model, calls = Model(1), []
        optimizer = make(model.parameters())
        train(model, optimizer)
        optimizer.register_state_dict_pre_hook(lambda one: calls.append("before save"))
        optimizer.register_state_dict_post_hook(lambda one, state: {**state, "note": "mine"})
        state = optimizer.state_dict()
        calls.append(state["note"])
        other_model = copy.deepcopy(model)
        other = make(other_model.parameters())

        def before_load(one, state):
            calls.append(("before load", sorted(state)))
            del state["note"]

        other.register_load_state_dict_pre_hook(before_load)

        def after_load(one):
            calls.append(("after load", float(one.state[parameters_of(one)[0]]["step"])))

        other.register_load_state_dict_post_hook(after_load)
        other.load_state_dict(state)
        calls.append("note" in state)  # the given state is another dictionary than the hook has changed
        train(other_model, other, first=4)
        return parameters_of(other), calls

    compare(thing, name)


# 3 ----------------------------------------------------------------------------------------------------- Named parameters
@each
def test_named_parameters(name):
    def thing(make):
        model = Model(1)
        optimizer = make([{"params": model.layers[0].named_parameters()}, {"params": model.layers[2].named_parameters()}])
        optimizer.add_param_group({"params": [("extra", torch.nn.Parameter(torch.ones(3)))]})
        train(model, optimizer)
        return list(model.parameters()), [group["param_names"] for group in optimizer.state_dict()["param_groups"]]

    compare(thing, name)

    for kind in (make_torch, lambda parameters: make(name, parameters)):
        optimizer = kind(Model(1).named_parameters())
        with pytest.raises(ValueError, match="all optimizer param groups should be with/without names"):
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
        assert len(optimizer.param_groups) == 1


# 4 ----------------------------------------------------------------------------------------------- Rates that are tensors
@each
def test_a_rate_that_is_a_tensor(name):
    def thing(make):
        model = Model(1)
        rate = torch.tensor(1e-2)
        optimizer = make(model.parameters(), lr=rate)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        train(model, optimizer, between=lambda step: schedule.step())
        rate_after = optimizer.param_groups[0]["lr"]
        optimizer.param_groups[0]["lr"].fill_(0.02)  # read at each step
        train(model, optimizer, first=4)
        loaded = saved_and_loaded(optimizer.state_dict())["param_groups"][0]["lr"]
        facts = [isinstance(one, torch.Tensor) for one in (rate_after, loaded)]
        return parameters_of(optimizer), (facts, round(float(loaded), 6))

    compare(thing, name)


# 5 ------------------------------------------------------------------------------------------------------------- Closures
@each
def test_closures(name):
    def thing(make):
        model, calls = Model(1), []
        optimizer = make(model.parameters())
        for step in range(4):

            def closure(step=step):
                optimizer.zero_grad()
                loss = model(**batch(step))["loss"]
                loss.backward()
                calls.append(torch.is_grad_enabled())
                return loss

            with torch.no_grad():
                loss = optimizer.step(closure)
            calls.append(loss.requires_grad)
        with pytest.raises(ZeroDivisionError):
            optimizer.step(lambda: 1 // 0)
        return parameters_of(optimizer), calls

    compare(thing, name)


# 6 ------------------------------------------------------------------------------------- Optimizers that step in backward
@each
def test_an_optimizer_for_each_parameter_that_steps_in_backward(name):
    def thing(make):
        model = Model(1)
        optimizers = {p: make([p]) for p in model.parameters()}

        def step(p):
            optimizers[p].step()
            optimizers[p].zero_grad()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(step)
        for number in range(4):
            model(**batch(number))["loss"].backward()
        return list(model.parameters()), [p.grad for p in model.parameters()]

    compare(thing, name)


# 7
@each
def test_apply_optimizer_in_backward(name):
    from torch.distributed.optim import _apply_optimizer_in_backward, _get_in_backward_optimizers

    def thing(make):
        model = Model(1)
        _apply_optimizer_in_backward(make, model.parameters(), {"lr": 2e-2})
        for number in range(4):
            model(**batch(number))["loss"].backward()
        optimizers = _get_in_backward_optimizers(model)
        return list(model.parameters()), [float(one.state[parameters_of(one)[0]]["step"]) for one in optimizers]

    compare(thing, name)


# 8 ------------------------------------------------------------------------------------- Conversions that swap parameters
@each
@pytest.mark.parametrize("swaps", [False, True])
def test_conversions_of_the_model_that_keep_its_type(swaps, name):
    class Convolutional(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.convolution = torch.nn.Conv2d(2, 3, 2)

        def forward(self, x, y):
            return {"loss": (self.convolution(x.reshape(-1, 2, 2, 2)).flatten() - y.flatten()[: 3 * len(x)]).square().mean()}

    def thing(make):
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(swaps)
        try:
            model = Convolutional()
            optimizer = make(model.parameters())
            train(model, optimizer)
            model.to(memory_format=torch.channels_last)
            train(model, optimizer, first=4)
            model.to("cpu").float()
            train(model, optimizer, first=8)
            model.to(memory_format=torch.contiguous_format)
            train(model, optimizer, first=12)
            is_same = all(p is q for p, q in zip(model.parameters(), parameters_of(optimizer)))
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)
        return list(model.parameters()), is_same

    compare(thing, name)


# 9
@each
def test_a_conversion_to_another_type_is_an_error_that_names_it(name):
    # torch.optim.AdamW goes on with moments of the old type, or fails within.
    model = Model(1)
    optimizer = make(name, model.parameters())
    train(model, optimizer)
    model.to(torch.bfloat16)
    with pytest.raises(ValueError, match="parameter 0.*float32.*bfloat16.*after the model has been converted"):
        optimizer.step()
    model.to(torch.float32)
    train(model, optimizer, first=4)


# 10 ------------------------------------------------------------------------------------------------ zero_grad, gradients
@each
def test_zero_grad_that_keeps_the_tensors(name):
    def thing(make):
        model = Model(1)
        optimizer = make(model.parameters())
        unused = torch.nn.Parameter(torch.ones(2))
        optimizer.add_param_group({"params": [unused]})
        places = set()
        for step in range(4):
            optimizer.zero_grad(set_to_none=False)
            model(**batch(step))["loss"].backward()
            places.add(parameters_of(optimizer)[0].grad.data_ptr())
            optimizer.step()
        return parameters_of(optimizer), (len(places), unused.grad)

    compare(thing, name)


# 11
@each
def test_gradients_of_other_layouts(name):
    def thing(make):
        torch.manual_seed(1)
        parameters = [torch.nn.Parameter(torch.randn(4, 6)) for _ in range(3)]
        optimizer = make(parameters)
        for step in range(4):
            torch.manual_seed(step)
            parameters[0].grad = torch.randn(6, 4).t()
            parameters[1].grad = torch.randn(1, 1).expand(4, 6)
            parameters[2].grad = torch.randn(4, 12)[:, ::2]
            optimizer.step()
        return parameters, None

    compare(thing, name)


@each
def test_gradients_of_another_type(name):
    # torch.optim.AdamW fails within, and so needs a conversion.
    def thing(make):
        p = torch.nn.Parameter(torch.linspace(-1.0, 1.0, 24).reshape(4, 6))
        optimizer = make([p])
        for step in range(4):
            torch.manual_seed(step)
            gradient = torch.randn(4, 6).to(torch.bfloat16)
            p.grad_dtype = torch.float32 if isinstance(optimizer, torch.optim.AdamW) else None
            p.grad = gradient.float() if isinstance(optimizer, torch.optim.AdamW) else gradient
            optimizer.step()
        return [p], None

    compare(thing, name)


# 12
@each
def test_clipping_by_torch(name):
    def thing(make):
        model = Model(1)
        optimizer = make(model.parameters())
        norms = []
        for step in range(4):
            optimizer.zero_grad()
            model(**batch(step))["loss"].backward()
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05, error_if_nonfinite=True))
            torch.nn.utils.clip_grad_value_(parameters_of(optimizer), 0.01)
            optimizer.step()
        return list(model.parameters()), [norm.isfinite().item() for norm in norms]

    compare(thing, name)


# 13 ---------------------------------------------------------------------------------------------------- Parametrizations
@each
def test_parametrizations(name):
    from torch.nn.utils import parametrizations, parametrize

    def thing(make):
        model = Model(1)
        parametrizations.weight_norm(model.layers[0])
        parametrizations.orthogonal(model.layers[2])
        optimizer = make(model.parameters())
        train(model, optimizer)
        weight = model.layers[2].weight
        error = (weight @ weight.t() - torch.eye(4)).abs().max().item()
        parametrize.remove_parametrizations(model.layers[0], "weight")
        return list(model.parameters()), error < 1e-5

    compare(thing, name)


# 14 -------------------------------------------------------------------------------------------------------- Tied weights
@each
def test_tied_weights(name):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
            self.second.weight = self.first.weight

        def forward(self, x, y):
            return {"loss": (self.second(self.first(x).tanh())[:, :4] - y).square().mean()}

    def thing(make):
        model = Tied()
        optimizer = make(model.parameters())
        train(model, optimizer)
        with pytest.raises(ValueError, match="more than one parameter group"):
            optimizer.add_param_group({"params": [model.second.weight]})
        train(model, optimizer, first=4)
        return list(model.parameters()), (model.second.weight is model.first.weight, len(parameters_of(optimizer)))

    compare(thing, name)


@each
def test_a_parameter_twice_in_a_list_is_not_trained_twice_in_silence(name):
    # torch warns, and will make it an error.
    p = torch.nn.Parameter(torch.ones(3))
    with warnings.catch_warnings(), pytest.raises((ValueError, UserWarning), match="more than once|duplicate"):
        warnings.simplefilter("error")
        make(name, [p, p])


# 15 -------------------------------------------------------------------------------------------------- Copies and pickles
@each
def test_a_copy_of_model_and_optimizer_together(name):
    def thing(make):
        model = Model(1)
        optimizer = make(model.parameters())
        train(model, optimizer)
        other_model, other = copy.deepcopy((model, optimizer))
        train(other_model, other, first=4)
        facts = [p is q for p, q in zip(other_model.parameters(), parameters_of(other))]
        moved = [not torch.equal(p, q) for p, q in zip(model.parameters(), other_model.parameters())]
        return list(other_model.parameters()), (facts, moved)

    compare(thing, name)


# 16
@each
def test_a_pickle_of_model_and_optimizer_together(name):
    def thing(make):
        model = Model(1)
        optimizer = make(model.parameters())
        train(model, optimizer)
        other_model, other = saved_and_loaded((model, optimizer), weights_only=False)
        train(model, optimizer, first=4)
        train(other_model, other, first=4)
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other_model.parameters()))
        return list(other_model.parameters()), [p is q for p, q in zip(other_model.parameters(), parameters_of(other))]

    compare(thing, name)


# 17 -------------------------------------------------------------------------------------------------------- Saved states
@each
def test_a_state_from_a_file_mapped_elsewhere(name, tmp_path):
    def thing(make):
        model = Model(1)
        optimizer = make(model.parameters())
        train(model, optimizer)
        file = tmp_path / "state.pt"
        torch.save(optimizer.state_dict(), file)
        for options in ({"map_location": "cpu"}, {"mmap": True}, {"map_location": lambda storage, place: storage}):
            optimizer.load_state_dict(torch.load(file, weights_only=True, **options))
        train(model, optimizer, first=4)
        with pytest.raises((RuntimeError, ValueError), match="meta"):  # it has no data
            optimizer.load_state_dict(torch.load(file, map_location="meta"))
        optimizer.load_state_dict(torch.load(file))
        return list(model.parameters()), None

    compare(thing, name)


# 18
@each
def test_states_that_do_not_fit(name):
    def thing(make):
        model = Model(1)
        optimizer = make(model.parameters())
        train(model, optimizer)
        few = make(list(Model(1).parameters())[:2]).state_dict()
        several = make([{"params": [p]} for p in Model(1).parameters()]).state_dict()
        messages = []
        for state in (few, several):
            with pytest.raises(ValueError) as found:
                optimizer.load_state_dict(state)
            messages.append("parameter group" in str(found.value))
        train(model, optimizer, first=4)
        return list(model.parameters()), messages

    compare(thing, name)


# 19 --------------------------------------------------------------------------------------------- Deferred initialization
@each
def test_a_model_on_meta_that_is_emptied_to_the_host(name):
    def thing(make):
        with torch.device("meta"):
            model = Model(1)
        model.to_empty(device="cpu")
        torch.manual_seed(3)
        for layer in (model.layers[0], model.layers[2]):
            layer.reset_parameters()
        optimizer = make(model.parameters())
        train(model, optimizer)
        return list(model.parameters()), None

    compare(thing, name)


@each
def test_an_optimizer_of_parameters_on_meta_works_or_says_why_not(name):
    with torch.device("meta"):
        model = Model(1)
    with pytest.raises(ValueError, match="meta"):
        make(name, model.parameters())


# 20
@each
def test_lazy_modules(name):
    def thing(make):
        torch.manual_seed(1)
        model = Model(1)
        model.layers[2] = torch.nn.LazyLinear(4)
        optimizer = make(model.parameters())
        torch.manual_seed(2)
        train(model, optimizer)
        return list(model.parameters()), [float(optimizer.state[p]["step"]) for p in model.parameters()]

    compare(thing, name)


# 21 ------------------------------------------------------------------------------------------------------------ Averages
@each
def test_averages_and_rates_of_swa(name):
    def thing(make):
        model = Model(1)
        optimizer = make(model.parameters())
        averaged = torch.optim.swa_utils.AveragedModel(model)
        schedule = torch.optim.swa_utils.SWALR(optimizer, swa_lr=5e-3, anneal_epochs=3)

        def between(step):
            averaged.update_parameters(model)
            schedule.step()

        train(model, optimizer, between=between)
        torch.optim.swa_utils.update_bn([batch(0)["x"]], averaged.module.layers)
        rates = [group["swa_lr"] for group in optimizer.param_groups]
        return list(averaged.module.parameters()), (rates, optimizer.param_groups[0]["lr"])

    compare(thing, name)


# 22 ----------------------------------------------------------------------------------------------------------- Schedules
def _schedules():
    rates = torch.optim.lr_scheduler
    return {
        "chained": lambda o: rates.ChainedScheduler([rates.ConstantLR(o, 0.1, 2), rates.ExponentialLR(o, 0.9)]),
        "sequential": lambda o: rates.SequentialLR(o, [rates.LinearLR(o, 0.1, 1.0, 2), rates.CosineAnnealingLR(o, 4)], [2]),
        "one_cycle": lambda o: rates.OneCycleLR(o, 0.05, total_steps=9),  # changes betas too
        "cyclic": lambda o: rates.CyclicLR(o, 1e-3, 1e-2, 2, cycle_momentum=True),
        "restarts": lambda o: rates.CosineAnnealingWarmRestarts(o, 2),
        "multiplicative": lambda o: rates.MultiplicativeLR(o, lambda step: 0.9),
    }


@each
@pytest.mark.parametrize("kind", _schedules())
def test_schedules(kind, name):
    def groups_of(model):
        return [{"params": model.layers[0].parameters()}, {"params": model.layers[2].parameters(), "lr": 2e-2}]

    def thing(make):
        model = Model(1)
        optimizer = make(groups_of(model))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # "lr_scheduler.step() before optimizer.step()"
            warnings.filterwarnings("ignore", message="The epoch parameter")
            schedule = _schedules()[kind](optimizer)
            seen = []
            train(model, optimizer, between=lambda step: seen.append(schedule.step() or schedule.get_last_lr()))
            state = schedule.state_dict()
            other_model = copy.deepcopy(model)
            other = make(groups_of(other_model))
            schedule = _schedules()[kind](other)
            other.load_state_dict(optimizer.state_dict())
            schedule.load_state_dict(state)
            train(other_model, other, first=4, between=lambda step: seen.append(schedule.step() or schedule.get_last_lr()))
        return list(other_model.parameters()), (seen, [group["betas"] for group in other.param_groups])

    compare(thing, name)


@each
def test_a_rate_that_is_reduced_on_a_plateau(name):
    def thing(make):
        model = Model(1)
        optimizer = make(model.parameters())
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.5)
        train(model, optimizer, 8, between=lambda step: schedule.step(1.0))
        return list(model.parameters()), schedule.get_last_lr()

    compare(thing, name)


# 23 ---------------------------------------------------------------------------------------------------- Parameter groups
@each
def test_a_parameter_that_is_appended_to_a_group(name):
    def thing(make):
        model = Model(1)
        late = torch.nn.Parameter(torch.ones(4))
        optimizer = make(model.parameters())
        train(model, optimizer, 2)
        optimizer.param_groups[0]["params"].append(late)
        for step in range(2, 4):
            optimizer.zero_grad()
            (model(**batch(step))["loss"] + late.square().sum()).backward()
            optimizer.step()
        return [*model.parameters(), late], float(optimizer.state[late]["step"])

    compare(thing, name)


@each
def test_a_parameter_that_is_removed_from_a_group_is_not_trained_in_silence(name):
    # torch.optim leaves it as it is from then on.
    model = Model(1)
    optimizer = make(name, model.parameters())
    train(model, optimizer, 2)
    removed = optimizer.param_groups[0]["params"].pop()
    before = removed.detach().clone()
    model(**batch(2))["loss"].backward()
    try:
        optimizer.step()
    except ValueError as refused:
        assert "param_groups" in str(refused)
    assert torch.equal(before, removed)


# 24
@each
def test_groups_with_betas_of_their_own_that_change(name):
    def thing(make):
        model = Model(1)
        groups = [
            {"params": model.layers[0].parameters(), "betas": (0.8, 0.99)},
            {"params": model.layers[2].parameters(), "weight_decay": 0.1, "eps": 1e-6},
        ]
        optimizer = make(groups)
        train(model, optimizer)
        optimizer.param_groups[0]["betas"] = (0.7, 0.98)
        optimizer.param_groups[1]["eps"] = 1e-5
        optimizer.param_groups[1]["weight_decay"] = 0.2
        train(model, optimizer, first=4)
        return list(model.parameters()), optimizer.defaults["weight_decay"]

    compare(thing, name)


# 25
@each
@pytest.mark.parametrize("option", ["maximize", "amsgrad", "foreach", "fused", "capturable", "differentiable"])
def test_options_of_torch_are_equal_or_clear_errors(option, name):
    def thing(make):
        model = Model(1)
        optimizer = make(model.parameters(), **{option: True})
        train(model, optimizer)
        return list(model.parameters()), None

    try:
        make(name, Model(1).parameters(), **{option: True})
    except (ValueError, TypeError) as refused:
        assert option in str(refused)
        return
    if option == "capturable":  # torch's own works on a GPU only
        return
    compare(thing, name)


# 26
@each
def test_wrong_parameters_are_errors_of_the_same_kind(name):
    leaf = torch.nn.Parameter(torch.ones(2))
    for wrong in ([], leaf, [leaf * 2], ["text"], [{"params": {leaf}}], [{"parameters": [leaf]}], [3]):
        kinds = []
        for kind in (make_torch, lambda parameters: make(name, parameters)):
            with pytest.raises(Exception) as found:  # noqa: PT011
                kind(wrong)
            kinds.append(found.type)
        assert kinds[0] is kinds[1], wrong


# 27 ---------------------------------------------------------------------------------------------------------- torch.func
@each
def test_functional_calls(name):
    def thing(make):
        model = Model(1)
        optimizer = make(model.parameters())
        for step in range(4):
            its = batch(step)
            named = dict(model.named_parameters())

            def loss(values, its=its):
                return torch.func.functional_call(model, values, kwargs=its, args=())["loss"]

            for key, gradient in torch.func.grad(loss)({key: p.detach() for key, p in named.items()}).items():
                named[key].grad = gradient
            optimizer.step()
        return list(model.parameters()), None

    compare(thing, name)


# 28
@each
def test_gradients_by_example_from_vmap(name):
    def thing(make):
        model = Model(1)
        optimizer = make(model.parameters())
        for step in range(4):
            its = batch(step)
            named = dict(model.named_parameters())

            def loss(values, x, y):
                return torch.func.functional_call(model, values, (x[None], y[None]))["loss"]

            values = {key: p.detach() for key, p in named.items()}
            gradients = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(values, its["x"], its["y"])
            for key, gradient in gradients.items():
                named[key].grad = gradient.mean(0)
            optimizer.step()
        return list(model.parameters()), None

    compare(thing, name)


# 29 ------------------------------------------------------------------------------------------------- Kinds of parameters
@each
def test_complex_parameters_are_trained_or_a_clear_error(name):
    with pytest.raises(ValueError, match="complex64"):
        make(name, [torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))])


# 30
@each
def test_sparse_gradients_are_an_error_and_change_nothing(name):
    for kind in (make_torch, lambda parameters: make(name, parameters)):
        table = torch.nn.Embedding(4, 2, sparse=True)
        optimizer = kind(table.parameters())
        table(torch.tensor([1, 2])).sum().backward()
        before = table.weight.detach().clone()
        with pytest.raises((RuntimeError, ValueError), match="sparse"):
            optimizer.step()
        assert torch.equal(before, table.weight)


# 31
@each
def test_empty_tensors_and_single_numbers(name):
    def thing(make):
        empty, number, one = (torch.nn.Parameter(torch.ones(shape)) for shape in ((0, 3), (), (1,)))
        optimizer = make([empty, number, one])
        for step in range(4):
            optimizer.zero_grad()
            ((number * (step + 1) - one).square() + empty.sum()).sum().backward()
            optimizer.step()
        state = saved_and_loaded(optimizer.state_dict())
        optimizer.load_state_dict(state)
        return [empty, number, one], [float(optimizer.state[p]["step"]) for p in (empty, number, one)]

    compare(thing, name)


@each
def test_only_empty_tensors(name):
    def thing(make):
        empty = torch.nn.Parameter(torch.ones(0))
        optimizer = make([empty])
        empty.sum().backward()
        optimizer.step()
        return [empty], float(optimizer.state[empty]["step"])

    compare(thing, name)


# 32
@each
def test_requires_grad_that_is_switched(name):
    def thing(make):
        model = Model(1)
        model.layers[0].requires_grad_(False)
        optimizer = make(model.parameters())
        train(model, optimizer, 2)
        model.layers[0].requires_grad_(True)
        train(model, optimizer, 2, first=2)
        model.layers[2].requires_grad_(False)
        train(model, optimizer, 2, first=4)
        return list(model.parameters()), None

    compare(thing, name)


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_the_steps_of_a_parameter_without_a_gradient_are_counted(name):
    """Unlike those of torch, as docs/how-to/pytorch.md says. It stays as it is in them."""

    def thing(make):
        parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
        optimizer = make(parameters)
        for step in range(4):
            before = parameters[1].detach().clone()
            parameters[0].grad = torch.full((2,), 1.0 + step)
            parameters[1].grad = torch.full((2,), 1.0 + step) if step % 2 else None
            optimizer.step()
            assert torch.equal(before, parameters[1]) == (step % 2 == 0)
        return parameters[:1], float(optimizer.state[parameters[0]]["step"])

    compare(thing, name)


# 33 ----------------------------------------------------------------------------------------------------------- The state
@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_the_state_can_be_read_and_written(name):
    def thing(make):
        model = Model(1)
        optimizer = make(model.parameters())
        train(model, optimizer)
        facts = [sorted(entry) for entry in optimizer.state.values()]
        for (key, entry), p in zip(optimizer.state.items(), model.parameters()):
            facts.append((key is p, entry["exp_avg"].shape == p.shape))
        facts.append([(entry["step"].dtype, entry["step"].shape, entry["step"].item()) for entry in optimizer.state.values()])
        for entry in optimizer.state.values():
            entry["exp_avg"].mul_(0.5)
            entry["exp_avg_sq"] = entry["exp_avg_sq"] * 2.0
        train(model, optimizer, first=4)
        return list(model.parameters()), facts

    compare(thing, name)


@each
def test_the_state_can_be_cleared_to_begin_anew(name):
    def thing(make):
        model = Model(1)
        optimizer = make(model.parameters())
        train(model, optimizer)
        optimizer.state.clear()
        train(model, optimizer, first=4)
        return list(model.parameters()), [float(entry["step"]) for entry in optimizer.state.values()]

    compare(thing, name)


@each
def test_the_state_can_be_moved_to_a_device(name):
    # As Lightning does before each training: every entry is replaced by one with equal values.
    def moved(value):
        return {key: moved(one) for key, one in value.items()} if isinstance(value, dict) else value.to("cpu")

    def thing(make):
        model = Model(1)
        optimizer = make(model.parameters())
        for first in (0, 4):
            for p, entry in optimizer.state.items():
                optimizer.state[p] = moved(entry)
            train(model, optimizer, first=first)
        return list(model.parameters()), None

    compare(thing, name)


# 34
@each
def test_the_state_by_names_of_distributed_checkpoints(name):
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_optimizer_state_dict,
        get_state_dict,
        set_optimizer_state_dict,
        set_state_dict,
    )

    def thing(make):
        model = Model(1)
        optimizer = make(model.parameters())
        train(model, optimizer)
        whole, state = copy.deepcopy(get_state_dict(model, optimizer))  # torch's own share tensors else
        other_model = Model(2)
        other = make(other_model.parameters())
        set_state_dict(other_model, other, model_state_dict=whole, optim_state_dict=state)
        for options in (StateDictOptions(full_state_dict=True), StateDictOptions(cpu_offload=True)):
            state = get_optimizer_state_dict(other_model, other, options=options)
            set_optimizer_state_dict(other_model, other, state, options=options)
        train(model, optimizer, first=4)
        train(other_model, other, first=4)
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other_model.parameters()))
        return list(other_model.parameters()), [sorted(group["params"]) for group in state["param_groups"]]

    compare(thing, name)


def save_distributed(name, folder):
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    model, other_model = Model(1), Model(2)
    optimizer, other = make(name, model.parameters()), make(name, other_model.parameters())

    def steps(model, optimizer, first, last):
        for step in range(first, last):
            optimizer.zero_grad()
            model(**batch(step, rank, ranks))["loss"].backward()
            optimizer.step()

    steps(model, optimizer, 0, 6)
    if name != "adamw" and name != "lamb":
        # Each rank's own, in a file of its own.
        folder = f"{folder}/rank{rank}"
    whole, state = get_state_dict(model, optimizer)
    options = {} if name in ("adamw", "lamb") else {"no_dist": True}
    checkpoint.save({"model": whole, "optimizer": state}, checkpoint_id=folder, **options)
    whole, state = get_state_dict(other_model, other)
    target = {"model": whole, "optimizer": state}
    checkpoint.load(target, checkpoint_id=folder, **options)
    set_state_dict(other_model, other, model_state_dict=target["model"], optim_state_dict=target["optimizer"])
    steps(model, optimizer, 6, 12)
    steps(other_model, other, 6, 12)
    return [torch.equal(p, q) for p, q in zip(model.parameters(), other_model.parameters())]


@pytest.mark.parametrize("name", NAMES)
def test_distributed_checkpoints_on_two_ranks(name, tmp_path):
    assert call(2, save_distributed, name, str(tmp_path)) == [[True] * 4] * 2


# 35 --------------------------------------------------------------------------------------------- ZeroRedundancyOptimizer
def train_in_parts(is_torch):
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    kind, settings = (torch.optim.AdamW, {}) if is_torch else (slamb.torch.AdamW, {"exchange": False})
    model = Model(1)
    wrapped = DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), kind, lr=1e-2, **settings)
    for step in range(8):
        if step == 4:
            optimizer.consolidate_state_dict(0)
            states = [optimizer.state_dict() if rank == 0 else None]
            torch.distributed.broadcast_object_list(states)
            optimizer = ZeroRedundancyOptimizer(model.parameters(), kind, lr=1e-2, **settings)
            optimizer.load_state_dict(states[0])
        optimizer.zero_grad()
        wrapped(**batch(step, rank, ranks))["loss"].backward()
        optimizer.step()
    return [p.detach().numpy().copy() for p in model.parameters()]


def test_zero_redundancy_optimizer():
    mine, theirs = call(2, train_in_parts, False), call(2, train_in_parts, True)
    for own, other in zip(mine, theirs):
        assert max(abs(a - b).max() for a, b in zip(own, other)) < 1e-5


# 36 --------------------------------------------------------------------------------------------------- Autograd's checks
@each
def test_a_graph_from_before_a_step_cannot_be_used_after_it(name):
    for kind in (make_torch, lambda parameters: make(name, parameters)):
        model = Model(1)
        optimizer = kind(model.parameters())
        loss = model(**batch(0))["loss"]
        loss.backward(retain_graph=True)
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


# 37 ----------------------------------------------------------------------------------------------- Data that is replaced
@each
def test_data_of_parameters_that_is_replaced_between_steps(name):
    def thing(make):
        model = Model(1)
        optimizer = make(model.parameters())
        for step in range(0, 8, 2):
            train(model, optimizer, 2, first=step)
            for p in model.parameters():
                p.data = p.data.clone() * 0.9
            vector = torch.nn.utils.parameters_to_vector(model.parameters())
            torch.nn.utils.vector_to_parameters(vector.detach() * 1.1, model.parameters())
        return list(model.parameters()), None

    compare(thing, name)


# 38 --------------------------------------------------------------------------------------------------- Defaults of torch
@each
def test_other_defaults_of_torch(name):
    def thing(make):
        model = Model(1)
        kept = torch.get_default_dtype()
        try:
            torch.set_default_dtype(torch.float64)
            with torch.device("meta"):
                optimizer = make(model.parameters())
        finally:
            torch.set_default_dtype(kept)
        train(model, optimizer, 2)
        try:
            torch.set_default_dtype(torch.float64)
            with torch.device("meta"):
                state = optimizer.state_dict()
                optimizer.load_state_dict(state)
        finally:
            torch.set_default_dtype(kept)
        train(model, optimizer, 2, first=2)
        return list(model.parameters()), None

    compare(thing, name)


# 39 ---------------------------------------------------------------------------------------------------------- Subclasses
@each
def test_a_subclass_with_a_step_of_its_own(name):
    def thing(make):
        kind = type(make([torch.nn.Parameter(torch.ones(1))]))
        calls = []

        class Counting(kind):
            def __init__(self, *arguments, **named):
                super().__init__(*arguments, **named)
                self.extra = [1]

            def step(self, closure=None):
                calls.append(len(self.param_groups))
                return super().step(closure)

        model = Model(1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            own = {} if kind is torch.optim.AdamW else OPTIMIZERS[name][1]
            optimizer = Counting(model.parameters(), lr=1e-2, **own)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
            train(model, optimizer, between=lambda step: schedule.step())
        return list(model.parameters()), (calls, optimizer.extra, type(copy.deepcopy(optimizer)).__name__)

    compare(thing, name)


# 40
@each
def test_names_for_the_profiler_and_the_text(name):
    def thing(make):
        model = Model(1)
        optimizer = make(model.parameters())
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            train(model, optimizer, 1)
        names = {one.key for one in profile.key_averages()}
        kind = type(optimizer).__name__
        shown = str(optimizer)
        return list(model.parameters()), (
            f"Optimizer.step#{kind}.step" in names,
            f"Optimizer.zero_grad#{kind}.zero_grad" in names,
            shown.startswith(f"{kind} ("),
            "lr: 0.01" in shown,
            "weight_decay" in optimizer.defaults,
        )

    compare(thing, name)


# 41 ---------------------------------------------------------------------------------------------------------- GradScaler
@each
def test_grad_scaler_with_clipping(name):
    def thing(make):
        model = Model(1)
        optimizer = make(model.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
        scales = []
        for step in range(6):
            optimizer.zero_grad()
            scaler.scale(model(**batch(step))["loss"] * (math.inf if step == 3 else 1.0)).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return list(model.parameters()), (scales, float(optimizer.state[next(model.parameters())]["step"]))

    compare(thing, name)


# 42 ----------------------------------------------------------------------------------------------- States of torch's own
@pytest.mark.parametrize("name", ["adamw"])
def test_the_state_of_torch_goes_on_here_and_back(name):
    def thing(make):
        model = Model(1)
        first = make_torch(model.parameters())
        train(model, first)
        second = make(model.parameters())
        second.load_state_dict(saved_and_loaded(first.state_dict()))
        train(model, second, first=4)
        third = make_torch(model.parameters())
        third.load_state_dict(second.state_dict())
        train(model, third, first=8)
        return list(model.parameters()), float(third.state[next(model.parameters())]["step"])

    compare(thing, name)


# 43 ------------------------------------------------------------------------------------------------------ inference_mode
@each
def test_calls_within_inference_mode(name):
    def thing(make):
        model = Model(1)
        with torch.inference_mode():
            optimizer = make(model.parameters())
        train(model, optimizer)
        other_model, other = copy.deepcopy((model, optimizer))
        with torch.inference_mode():
            other.state_dict()
            state = optimizer.state_dict()
        train(other_model, other, first=4)
        train(model, optimizer, first=4)
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other_model.parameters()))
        return list(model.parameters()), len(state["state"])

    compare(thing, name)
