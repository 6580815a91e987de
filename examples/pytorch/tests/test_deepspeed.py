"""Configurations and checkpoints of DeepSpeed, in the form in which it has them: which become which optimizers, and which are refused.
With DeepSpeed itself: tests/clients/test_deepspeed_removed.py."""

import copy
import json
import warnings

import pytest
import torch

import slamb.torch as st

PARAMETERS = ((6, 4), (5,))


def parameters():
    torch.manual_seed(4)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in PARAMETERS]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = parameters()
        self.register_buffer("seen", torch.zeros(()))


def config(type_name, **options):
    return {"optimizer": {"type": type_name, "params": options}}


# ------------------------------------------------------------------------------------------------------------- from_deepspeed


@pytest.mark.parametrize(
    "type_name, kind, options, settings",
    [
        ("OneBitAdam", st.OneBitAdam, {"freeze_step": 7}, {"warm_up_steps": 7, "scales": "per_tensor"}),
        ("OnebitAdam", st.OneBitAdam, {}, {"warm_up_steps": 100000}),
        (
            "OneBitLamb",
            st.OneBitLamb,
            {"freeze_step": 7, "max_coeff": 9.0, "min_coeff": 0.02, "coeff_beta": 0.8, "factor_max": 3.0, "factor_min": 0.6}
            | {"factor_threshold": 0.2},
            {"warm_up_steps": 7, "trust_ratio_upper": 9.0, "trust_ratio_lower": 0.02, "trust_ratio_average": 0.8}
            | {"trust_ratio_factor_upper": 3.0, "trust_ratio_factor_lower": 0.6, "trust_ratio_factor_change": 0.2},
        ),
        (
            "ZeroOneAdam",
            st.ZeroOneAdam,
            {"var_freeze_step": 5, "var_update_scaler": 2, "local_step_scaler": 3, "local_step_clipper": 4},
            {"variance_freeze_step": 5, "variance_update_scaler": 2, "local_interval_scaler": 3, "local_interval_clipper": 4},
        ),
        ("Lamb", st.Lamb, {"bias_correction": False}, {"trust_ratio_upper": 10.0, "trust_ratio_lower": 0.01, "bias_correction": False}),
        ("Adam", st.AdamW, {"adam_w_mode": True, "max_grad_norm": 0.0}, {}),
        ("AdamW", st.AdamW, {"max_grad_norm": 2.0}, {"max_gradient_norm": 2.0}),
    ],
)
def test_a_configuration_becomes_the_optimizer(type_name, kind, options, settings, tmp_path):
    file = tmp_path / "ds_config.json"
    file.write_text(json.dumps({"train_batch_size": 8, **config(type_name, lr=0.02, betas=[0.8, 0.99], eps=1e-7, **options)}))
    for given in (json.loads(file.read_text()), json.loads(file.read_text())["optimizer"], file, str(file)):
        optimizer = st.from_deepspeed(parameters(), given)
        assert type(optimizer) is kind
        group = optimizer.param_groups[0]
        assert (group["lr"], tuple(group["betas"]), group["eps"], group["weight_decay"]) == (0.02, (0.8, 0.99), 1e-7, 0.0)
        assert settings.items() <= optimizer._arguments["settings"].items()


def test_arguments_replace_those_of_the_configuration():
    optimizer = st.from_deepspeed(parameters(), config("OneBitAdam", lr=0.02), lr=0.5, compressor="int8", weight_decay=0.1)
    assert optimizer.param_groups[0]["lr"] == 0.5 and optimizer.param_groups[0]["weight_decay"] == 0.1
    assert "scales" not in optimizer._arguments["settings"]


@pytest.mark.parametrize(
    "given, said",
    [
        (config("Muon"), r"no optimizer of DeepSpeed's type 'Muon' here; there are OneBitAdam, OneBitLamb"),
        ({"train_batch_size": 8}, r"no optimizer of DeepSpeed's type None"),
        (config("OneBitAdam", cuda_aware=True, comm_backend_name="nccl"), r"cuda_aware = True \(ranks .*comm_backend_name = 'nccl'"),
        (config("OneBitAdam", factor_max=3.0), r"factor_max = 3.0 \(it is no option of this optimizer\)"),
        (config("OneBitLamb", amsgrad=True), r"amsgrad = True \(there is no such variant"),
        (config("Adam", adam_w_mode=False), r"adam_w_mode = False \(weight decay is decoupled"),
        (config("Adam", torch_adam=True), r"torch_adam = True"),
        ({"zero_optimization": {"stage": 1}, **config("OneBitAdam")}, r"ZeRO stage 1, .*set zero_optimization.stage to 0"),
        ({"fp16": {"enabled": True}, **config("OneBitAdam")}, r"has fp16, .*use torch_autocast, or convert the model"),
        ({"bf16": {"enabled": True}, **config("OneBitAdam")}, r"has bf16"),
    ],
)
def test_a_configuration_without_a_meaning_here_is_refused(given, said):
    with pytest.raises(ValueError, match=said):
        st.from_deepspeed(parameters(), given)


@pytest.mark.parametrize(
    "given, said",
    [
        (config("OneBitAdam", lr="auto", betas="auto"), r"are 'auto': lr, betas; put values in their place"),
        ({"bfloat16": {"enabled": True}, **config("OneBitAdam")}, r"has bfloat16"),
        ({"fp16": {"enabled": "auto"}, **config("OneBitAdam")}, r"fp16.enabled = 'auto'; put true or false"),
        ({"zero_optimization": True, **config("OneBitAdam")}, r"ZeRO stage 1"),
        ({"optimizer": None}, r"has optimizer = None, but it must have 'type' and 'params'"),
    ],
)
def test_values_of_other_types_are_refused(given, said):
    with pytest.raises(ValueError, match=said):
        st.from_deepspeed(parameters(), given)


def test_a_stage_as_a_text_and_null_are_read():
    given = {"zero_optimization": {"stage": "0"}, "fp16": {"enabled": "false"}, **config("OneBitAdam", freeze_step=None)}
    assert st.from_deepspeed(parameters(), given)._arguments["settings"]["warm_up_steps"] == 100000
    assert st.from_deepspeed(parameters(), given, freeze_step=7)._arguments["settings"]["warm_up_steps"] == 7


@pytest.mark.parametrize("text, said", [("{} // comment", "is no JSON"), ("[1]", "has a list")])
def test_a_file_that_is_no_configuration_is_refused(text, said, tmp_path):
    (tmp_path / "ds.json").write_text(text)
    with pytest.raises(ValueError, match=said):
        st.from_deepspeed(parameters(), tmp_path / "ds.json")


@pytest.mark.parametrize("key", ["max_coeff", "non_freeze", "exp_avg_mask"])
def test_options_of_parameter_groups_that_have_no_meaning_are_refused(key):
    with pytest.raises(ValueError, match=f"parameter group 0 has '{key}', an option of DeepSpeed; "):
        st.from_deepspeed([{"params": parameters(), key: 1.0}], config("OneBitLamb"))


def test_lamb_of_deepspeed_corrects_the_bias_in_its_steps():
    with pytest.warns(RuntimeWarning, match=r"multiply the learning rate by sqrt\(1 - beta2\*\*t\)"):
        st.from_deepspeed(parameters(), config("Lamb"))
    p = parameters()
    optimizer = st.from_deepspeed(p, config("Lamb", bias_correction=False, weight_decay=0.1))
    expected = [one.detach().double().clone() for one in p]
    moments = [(torch.zeros_like(one), torch.zeros_like(one)) for one in expected]
    generator = torch.Generator().manual_seed(6)
    for t in range(1, 21):
        rate = 0.02 * (1 - 0.999**t) ** 0.5 / (1 - 0.9**t)
        for one, own, (m, v) in zip(p, expected, moments):
            g = torch.randn(one.shape, generator=generator)
            one.grad = g.clone()
            m.mul_(0.9).add_(g, alpha=0.1)
            v.mul_(0.999).add_(g.double() ** 2, alpha=0.001)
            u = m / (v.sqrt() + 1e-8) + 0.1 * own
            own -= rate * (own.norm() / u.norm()).clamp(0.01, 10.0) * u
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
    for one, own in zip(p, expected):
        torch.testing.assert_close(one.detach().double(), own, rtol=0, atol=1e-5)


def test_options_that_change_nothing_are_accepted():
    given = config("OneBitLamb", amsgrad=False, eps_inside_sqrt=False, bias_correction=True)
    assert type(st.from_deepspeed(parameters(), {"fp16": {"enabled": False}, "zero_optimization": {"stage": 0}, **given})) is st.OneBitLamb


# ------------------------------------------------------------------------------------------------------------- load_deepspeed


def entry(shape, **more):
    return {"step": 4, "exp_avg": torch.full(shape, 0.5), "exp_avg_sq": torch.full(shape, 0.25), **more}


def lamb_entry(shape):
    return entry(shape, exp_avg_sq_fresh=torch.full(shape, 0.2), lamb_coeff_freeze=0.4, last_factor=1.1, scaling_coeff=0.9)


def zero_one_entry(shape):
    names = {"var_interval": 2, "var_counter": 0, "local_step_interval": 1, "local_step_counter": 0}
    return entry(shape, **names, lrs=0, momentum_accumulator=torch.zeros(shape))


ENTRIES = {"OneBitAdam": entry, "OneBitLamb": lamb_entry, "ZeroOneAdam": zero_one_entry, "Lamb": entry, "Adam": entry}


def checkpoint(type_name="OneBitLamb", **options):
    own = {"freeze_step": 3} if type_name in ("OneBitAdam", "OneBitLamb") else {}
    state = {i: ENTRIES[type_name](shape) for i, shape in enumerate(PARAMETERS)}
    return {
        "module": {"weight": torch.full((6, 4), 2.0), "bias": torch.full((5,), 3.0), "seen": torch.tensor(7.0)},
        "optimizer": {"state": state, "param_groups": [{"lr": 0.1, "params": [0, 1]}]},
        "dp_world_size": 1,
        "mp_world_size": 1,
        "global_steps": 4,
        "lr_scheduler": {"last": 4},
        "ds_config": config(type_name, **own, **options),
    }


def made(saved, **arguments):
    model = Net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Lamb
        return model, st.from_deepspeed(model.parameters(), saved["ds_config"], **arguments)


@pytest.mark.parametrize("type_name", ENTRIES)
def test_a_checkpoint_becomes_parameters_buffers_and_moments(type_name):
    saved = checkpoint(type_name)
    model, optimizer = made(saved)
    rest = st.load_deepspeed(saved, model, optimizer)
    assert rest["global_steps"] == 4 and rest["lr_scheduler"] == {"last": 4} and not {"module", "optimizer"} & rest.keys()
    assert bool((model.weight == 2).all()) and bool((model.bias == 3).all()) and float(model.seen) == 7
    for p in model.parameters():
        found = optimizer.moments(p)
        assert found["step"] == (3 if type_name == "ZeroOneAdam" else 4)
        assert bool((found["exp_avg"] == 0.5).all()) and bool((found["exp_avg_sq"] == 0.25).all())
    phases = {"OneBitAdam": "compressed", "OneBitLamb": "compressed", "ZeroOneAdam": "variance"}
    assert optimizer.statistics()["phase"] == phases.get(type_name, optimizer.statistics()["phase"])
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_an_optimizer_that_has_trained_continues_from_the_checkpoint_alone():
    saved = checkpoint()
    ends = []
    for steps in (0, 3):
        model, optimizer = made(saved)
        for step in range(steps + 1):
            if step == steps:
                st.load_deepspeed(copy.deepcopy(saved), model, optimizer)
            for p in model.parameters():
                p.grad = torch.full_like(p, 0.1 if step == steps else 0.3)
            optimizer.step()
        ends.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ends))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_flat", [False, True])
def test_float32_copies_become_the_parameters(is_flat, dtype):
    saved = checkpoint("OneBitAdam")
    inner = saved["optimizer"]
    values = [torch.randn(shape) for shape in PARAMETERS]
    wrapped = {"optimizer_state_dict": inner, "dynamic_loss_scale": True}
    if is_flat:
        inner["state"] = {0: entry((29,), exp_avg=torch.arange(29.0), exp_avg_sq=torch.ones(29))}
        inner["param_groups"][0]["params"] = [0]
        wrapped["fp32_groups_flat"] = [torch.cat([value.view(-1) for value in values])]
    else:
        wrapped["fp32_groups"] = [values]
    saved["optimizer"] = wrapped
    model = Net().to(dtype)
    optimizer = st.from_deepspeed(model.parameters(), saved["ds_config"])
    st.load_deepspeed(saved, model, optimizer)
    for p, value in zip(model.parameters(), values):
        assert torch.equal(p.detach(), value.to(dtype))
    if is_flat:
        assert torch.equal(optimizer.moments(model.bias)["exp_avg"], torch.arange(24.0, 29.0))
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    if dtype == torch.bfloat16:  # the copies have all digits
        assert all(torch.equal(optimizer._shared.parts[0].tensors.masters[i], value) for i, value in enumerate(values))


def changed(saved, path, value):
    its = saved
    for key in path[:-1]:
        its = its[key]
    if value is None:
        del its[path[-1]]
    else:
        its[path[-1]] = value
    return saved


@pytest.mark.parametrize(
    "path, value, said",
    [
        (("optimizer",), None, r"without 'optimizer', which is no checkpoint of DeepSpeed"),
        (("dp_world_size",), 8, r"a training on 8 ranks, but now there are 1; .*from_other_ranks=True"),
        (("ds_config", "optimizer", "type"), "OneBitAdam", r"DeepSpeed's OneBitAdam, but this optimizer is OneBitLamb"),
        (("ds_config", "optimizer", "params", "freeze_step"), 9, r"freeze_step = 9, but this optimizer has warm_up_steps = 3"),
        (("optimizer", "state", 1, "step"), 5, r"have taken \[4, 5\] steps"),
        (("optimizer", "state", 1, "step"), 4.5, r"parameter 1 has step = 4.5, but it must be a whole number"),
        (("optimizer", "state", 1, "exp_avg"), torch.zeros(6), r"parameter 1 has 'exp_avg' = .*\(6,\), but .* shape \(5,\)"),
        (("optimizer", "state", 1, "exp_avg"), torch.zeros(5, dtype=torch.int64), r"parameter 1 has 'exp_avg' = torch.int64"),
        (("optimizer", "state", 1, "exp_avg_sq"), None, r"parameter 1 has no 'exp_avg_sq'"),
        (("optimizer", "state", 1, "exp_avg_sq_fresh"), None, r"no 'exp_avg_sq_fresh'"),
        (("optimizer", "state", 1, "exp_avg_sq"), torch.full((5,), -1.0), r"exp_avg_sq of parameter 1 .*not finite, or negative"),
        (("optimizer", "state", 1, "exp_avg"), torch.full((5,), float("nan")), r"exp_avg of parameter 1 .*has\s+diverged"),
        (("optimizer", "state", 0, "last_factor"), float("nan"), r"parameter 0 .*last_factor = nan"),
        (("optimizer", "state", 0, "scaling_coeff"), 1e60, r"scaling_coeff = 1e\+60, which must be numbers > 0 of float32"),
        (("optimizer", "param_groups", 0, "lr"), -1.0, r"lr of parameter group 0 = -1.0"),
        (("optimizer", "param_groups"), None, r"no 'state' and 'param_groups' of an optimizer"),
        (("module",), [1], r"no dictionaries as 'optimizer' and 'module'"),
        (("ds_config", "optimizer", "params", "freeze_step"), None, r"freeze_step = 100000, but this optimizer has warm_up_steps = 3"),
        (("optimizer", "param_groups"), [{"params": [0]}, {"params": [1]}], r"2 parameter groups, but this optimizer has 1"),
        (("optimizer", "param_groups"), [{"params": [0]}], r"1 parameters in group 0, but this optimizer has 2"),
        (("module", "bias"), None, r"the model in the checkpoint lacks 'bias'"),
        (("module", "head"), torch.zeros(3), r"the model in the checkpoint has 'head'"),
        (("module", "bias"), torch.zeros(6), r"'bias' in the checkpoint has the shape \(6,\), but \(5,\) in the model"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_and_nothing_has_changed(path, value, said):
    saved = checkpoint()
    model, optimizer = made(saved)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(ValueError, match=said):
        st.load_deepspeed(changed(copy.deepcopy(saved), path, value), model, optimizer)
    assert all(torch.equal(p, one) for p, one in zip(model.parameters(), before)) and float(model.seen) == 0
    assert optimizer.statistics()["step"] == 0


def test_the_parameter_groups_take_over_those_of_the_checkpoint():
    saved = checkpoint()
    saved["optimizer"]["param_groups"][0] |= {"lr": 0.03, "initial_lr": 0.3, "betas": [0.8, 0.98], "eps": 1e-5, "weight_decay": 0.2}
    model, optimizer = made(saved, lr=0.5)
    st.load_deepspeed(saved, model, optimizer)
    group = optimizer.param_groups[0]
    assert (group["lr"], group["initial_lr"], list(group["betas"]), group["eps"], group["weight_decay"]) == (
        *(0.03, 0.3, [0.8, 0.98], 1e-5, 0.2),
    )
    # A scheduler continues with the rate of the checkpoint.
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
    assert schedule.base_lrs == [0.3]


def test_groups_that_would_need_other_coefficients_are_refused():
    saved = checkpoint()
    saved["optimizer"]["param_groups"] = [{"params": [0], "betas": (0.9, 0.999)}, {"params": [1], "betas": (0.8, 0.999)}]
    model = Net()
    optimizer = st.from_deepspeed([{"params": [model.weight]}, {"params": [model.bias]}], saved["ds_config"])
    with pytest.raises(ValueError, match="different betas or eps, .*construct it with those of the training"):
        st.load_deepspeed(saved, model, optimizer)
    assert bool((model.weight != 2).all())


def test_a_model_must_have_the_parameters_of_the_optimizer():
    saved = checkpoint()
    _, optimizer = made(saved)
    with pytest.raises(ValueError, match="a model without some parameters of the optimizer"):
        st.load_deepspeed(saved, Net(), optimizer)


def test_sixteen_bits_keep_the_digits_of_a_checkpoint_in_float32():
    saved = checkpoint("OneBitAdam")
    saved["module"]["bias"] = torch.full((5,), 1.000244140625)
    model = Net().to(torch.bfloat16)
    optimizer = st.from_deepspeed(model.parameters(), saved["ds_config"])
    st.load_deepspeed(saved, model, optimizer)
    masters = optimizer._shared.parts[0].tensors.masters
    assert bool((masters[1] == 1.000244140625).all()) and bool((model.bias == 1).all())


def test_adam_may_have_parameters_without_state_and_other_numbers_of_steps():
    saved = checkpoint("Adam")
    saved["optimizer"]["state"][1]["step"] = 9
    model, optimizer = made(saved)
    st.load_deepspeed(saved, model, optimizer)
    assert [float(optimizer.state[p]["step"]) for p in model.parameters()] == [4, 9]
    # FusedAdam has the number in the group, and a parameter that has never had a gradient has no state.
    saved["optimizer"]["param_groups"][0]["step"] = 7
    del saved["optimizer"]["state"][1]
    del saved["optimizer"]["state"][0]["step"]
    model, optimizer = made(saved)
    st.load_deepspeed(saved, model, optimizer)
    assert float(optimizer.state[model.weight]["step"]) == 7


def test_a_state_of_slamb_that_deepspeed_has_saved_is_not_one_of_deepspeed():
    saved = checkpoint()
    model, optimizer = made(saved)
    saved["optimizer"] = optimizer.state_dict()
    with pytest.raises(ValueError, match=r"the state of an optimizer of slamb; load it by engine.load_checkpoint\(\)"):
        st.load_deepspeed(saved, model, optimizer)


@pytest.mark.parametrize("name, value", [("fp32_groups", []), ("fp32_groups", [[torch.zeros(6, 4)]]), ("fp32_groups_flat", [torch.zeros(7)])])
def test_float32_copies_that_do_not_fit_are_refused(name, value):
    saved = checkpoint("OneBitAdam")
    model, optimizer = made(saved)
    saved["optimizer"] = {"optimizer_state_dict": saved["optimizer"], name: value}
    with pytest.raises(ValueError, match="slamb: the checkpoint has"):
        st.load_deepspeed(saved, model, optimizer)


def test_a_checkpoint_of_zero_or_of_another_optimizer_is_refused():
    saved = checkpoint()
    model, optimizer = made(saved)
    with pytest.raises(ValueError, match="with ZeRO, whose optimizer state is partitioned.*zero_to_fp32.py"):
        st.load_deepspeed({**saved, "optimizer": None}, model, optimizer)
    with pytest.raises(ValueError, match="given a Slamb, but DeepSpeed has no such optimizer"):
        st.load_deepspeed(saved, model, st.Slamb(model.parameters()))
    with pytest.raises(ValueError, match="given a SGD"):
        st.load_deepspeed(saved, model, torch.optim.SGD(model.parameters(), lr=0.1))
    del saved["ds_config"]
    with pytest.raises(ValueError, match="that of DeepSpeed's OneBitLamb, but this optimizer is ZeroOneAdam"):
        st.load_deepspeed(saved, model, st.ZeroOneAdam(model.parameters()))


def test_with_another_number_of_ranks_it_continues_if_told_so():
    saved = {**checkpoint(), "dp_world_size": 8}
    model, optimizer = made(saved)
    st.load_deepspeed(saved, model, optimizer, from_other_ranks=True)
    assert optimizer.statistics()["step"] == 4


@pytest.mark.parametrize(
    "key, value, said",
    [
        ("var_interval", 3, "var_interval a power of two"),
        ("var_interval", 0, "var_interval a power of two"),
        ("var_counter", -1, "no number negative"),
        ("var_counter", None, "must be the same of all"),
        ("local_step_interval", 2, "has taken local steps .*construct it with the var_freeze_step of the training"),
    ],
)
def test_intervals_that_no_training_of_these_options_has_are_refused(key, value, said):
    saved = checkpoint("ZeroOneAdam")
    model, optimizer = made(saved)
    for its in saved["optimizer"]["state"].values():
        its.update({key: value}) if value is not None else its.pop(key)
    with pytest.raises(ValueError, match=said):
        st.load_deepspeed(saved, model, optimizer)
    assert float(model.seen) == 0


def test_zero_one_adam_of_other_intervals_is_refused():
    saved = checkpoint("ZeroOneAdam", var_freeze_step=9)
    model, optimizer = made(saved, var_freeze_step=8)
    with pytest.raises(ValueError, match="var_freeze_step = 9, but this optimizer has variance_freeze_step = 8"):
        st.load_deepspeed(saved, model, optimizer)


def test_zero_one_adam_between_two_exchanges_is_refused():
    for key, value in (("lrs", 0.1), ("momentum_accumulator", torch.ones(5))):
        saved = changed(checkpoint("ZeroOneAdam"), ("optimizer", "state", 1, key), value)
        model, optimizer = made(saved)
        with pytest.raises(ValueError, match="between two exchanges of 0/1 Adam.* multiple of local_step_interval = 1"):
            st.load_deepspeed(saved, model, optimizer)


@pytest.mark.parametrize("warm_up_steps, is_frozen", [(9, True), (3, False)])
def test_without_a_configuration_the_phase_must_be_that_of_the_warm_up(warm_up_steps, is_frozen):
    saved = checkpoint()
    model, optimizer = made(saved, warm_up_steps=warm_up_steps)
    del saved["ds_config"]
    for its in saved["optimizer"]["state"].values():
        if not is_frozen:
            del its["scaling_coeff"]
    with pytest.raises(ValueError, match=f"is {'' if is_frozen else 'not '}frozen, but this optimizer has warm_up_steps = {warm_up_steps}"):
        st.load_deepspeed(saved, model, optimizer)


# ---------------------------------------------------------------------------------------------------------------------- Files


@pytest.mark.skipif(torch.__version__.startswith("1."), reason="torch.load(weights_only=True) of torch 1 cannot read numbers")
def test_the_folder_of_all_steps_or_of_one_and_the_file_are_found(tmp_path):
    saved = checkpoint()
    for tag, factor in (("global_step4", 1.0), ("other", 2.0)):
        (tmp_path / tag).mkdir()
        file = tmp_path / tag / "mp_rank_00_model_states.pt"
        torch.save({**saved, "module": {key: value * factor for key, value in saved["module"].items()}}, file)
    (tmp_path / "latest").write_text("global_step4\n")
    for place, tag, expected in (
        (tmp_path, None, 2.0),
        (str(tmp_path), "other", 4.0),
        (tmp_path / "other", None, 4.0),
        (tmp_path / "other" / "mp_rank_00_model_states.pt", None, 4.0),
    ):
        model, optimizer = made(saved)
        st.load_deepspeed(place, model, optimizer, tag=tag)
        assert bool((model.weight == expected).all())
    model, optimizer = made(saved)
    with pytest.raises(FileNotFoundError, match=r"looked for .*none/mp_rank_00_model_states.pt.*'latest'"):
        st.load_deepspeed(tmp_path, model, optimizer, tag="none")


def test_folders_of_zero_and_of_parts_of_a_model_are_refused(tmp_path):
    saved = checkpoint()
    model, optimizer = made(saved)
    for name, said in (
        ("zero_pp_rank_0_mp_rank_00_optim_states.pt", "with ZeRO"),
        ("mp_rank_01_model_states.pt", "a model in several parts"),
        ("layer_00-model_states.pt", "a model in several parts"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        torch.save(saved, folder / "mp_rank_00_model_states.pt")
        torch.save({}, folder / name)
        with pytest.raises(ValueError, match=said):
            st.load_deepspeed(folder, model, optimizer)


class Strange:
    pass


def test_objects_in_a_file_are_not_executed(tmp_path):
    file = tmp_path / "mp_rank_00_model_states.pt"
    torch.save({**checkpoint(), "mine": Strange()}, file)
    model, optimizer = made(checkpoint())
    with pytest.raises(ValueError, match="has objects besides tensors and numbers; if you trust it, pass torch.load"):
        st.load_deepspeed(file, model, optimizer)
