"""Parameter groups are read at every step, and can be added."""

import copy

import pytest
import torch
from conftest import (
    CLASSES,
    SHORT,
    LambOracle,
    assert_near,
    assert_same_bits,
    copies_of,
    follow_torch,
    give_gradients,
    gradients_of,
    make_parameters,
    noise,
    parameters_of,
    skip_before,
    train,
)

import slamb.torch as st

schedulers = torch.optim.lr_scheduler


def two_groups(p):
    return [{"params": p[:2], "lr": 0.02}, {"params": p[2:], "lr": 0.05, "weight_decay": 0.3}]


@pytest.mark.parametrize(
    "make",
    [
        lambda o: schedulers.LambdaLR(o, [lambda step: 0.9**step, lambda step: 1.0 / (1 + step)]),
        lambda o: schedulers.CosineAnnealingLR(o, T_max=9),
        lambda o: schedulers.CosineAnnealingWarmRestarts(o, T_0=4, T_mult=2),
        lambda o: schedulers.OneCycleLR(o, max_lr=[0.05, 0.02], total_steps=40),
        lambda o: schedulers.CyclicLR(o, 0.001, 0.05, step_size_up=5, cycle_momentum=False),
        lambda o: schedulers.SequentialLR(
            o, [schedulers.LinearLR(o, 0.1, total_iters=5), schedulers.ExponentialLR(o, 0.9)], milestones=[5]
        ),
    ],
    ids=["lambda", "cosine", "warm restarts", "one cycle", "cyclic", "sequential"],
)
def test_schedulers_of_torch_work_as_with_torch_adamw(make):
    p = make_parameters()
    mine, theirs = st.AdamW(two_groups(p)), torch.optim.AdamW(two_groups(copies_of(p)))
    schedules = {id(mine): make(mine), id(theirs): make(theirs)}
    rates = set()

    def advance(optimizer, step):
        if step > 1:
            schedules[id(optimizer)].step()
        rates.add(float(optimizer.param_groups[0]["lr"]))

    follow_torch(mine, theirs, 30, advance)
    assert len(rates) > 3


def test_one_cycle_cycles_beta1_of_the_optimizer():
    p = make_parameters()
    optimizer = st.AdamW(p)
    schedule = schedulers.OneCycleLR(optimizer, max_lr=0.05, total_steps=20, base_momentum=0.5, max_momentum=0.9)
    seen = set()
    for step in range(1, 15):
        train(optimizer, step, step)
        seen.add(optimizer.param_groups[0]["betas"])
        schedule.step()
    assert len(seen) > 5


def test_a_rate_can_be_a_tensor_that_is_changed_in_place():
    p = make_parameters()
    rate = torch.tensor(0.02)
    optimizer = st.AdamW(p, lr=rate)
    oracle = LambOracle(p, adapt=False)
    for step in range(1, 6):
        rate.fill_(0.02 / step)
        give_gradients(p, step)
        gradients = gradients_of(p)
        optimizer.step()
        oracle.step(gradients, 0.02 / step)
        assert_near(p, oracle.p)


def test_a_rate_that_is_a_tensor_survives_a_checkpoint():
    p = make_parameters()
    optimizer = st.AdamW(p, lr=torch.tensor(0.25))
    train(optimizer, 1, 2)
    other = st.AdamW(copies_of(p))
    other.load_state_dict(optimizer.state_dict())
    assert float(other.param_groups[0]["lr"]) == 0.25


@skip_before(2, 5, "betas as tensors")
def test_betas_can_be_tensors_that_are_changed_in_place():
    p = make_parameters()
    beta1, beta2 = torch.tensor(0.9), torch.tensor(0.99)
    optimizer = st.AdamW(p, lr=0.02, betas=(beta1, beta2))
    reference = torch.optim.AdamW(copies_of(p), lr=0.02, betas=(0.9, 0.99))

    def change(one, step):
        beta1.fill_(0.9 - 0.02 * step)
        if one is reference:
            one.param_groups[0]["betas"] = (0.9 - 0.02 * step, 0.99)

    follow_torch(optimizer, reference, 5, change)


@pytest.mark.parametrize(
    "change",
    [
        lambda group, step: group.update(weight_decay=0.02 * step),
        lambda group, step: group.update(betas=(0.9 - 0.02 * step, 0.9)),
        lambda group, step: group.update(betas=(0.9, 0.9 + 0.005 * step)),
        lambda group, step: group.update(eps=10.0 ** (-step)),
        lambda group, step: group.update(lr=0.0 if step % 2 else 0.03),
    ],
    ids=["weight_decay", "beta1", "beta2", "eps", "lr"],
)
def test_settings_that_change_between_steps_work_as_with_torch_adamw(change):
    p = make_parameters()

    def change_all(optimizer, step):
        for group in optimizer.param_groups:
            change(group, step)

    follow_torch(st.AdamW(two_groups(p)), torch.optim.AdamW(two_groups(copies_of(p))), 12, change_all)


def test_weight_decay_of_one_group_can_change():
    p = make_parameters()

    def change(optimizer, step):
        optimizer.param_groups[1]["weight_decay"] = 0.1 * step

    follow_torch(st.AdamW(two_groups(p)), torch.optim.AdamW(two_groups(copies_of(p))), 6, change)


@pytest.mark.parametrize(
    "groups, change, text",
    [
        ((0, 1), {"betas": (0.9, 1.5)}, r"beta2 = 1.5.*\[0, 1\)"),
        ((0, 1), {"betas": (-0.1, 0.9)}, r"beta1 = -0.1.*\[0, 1\)"),
        ((0, 1), {"eps": 0.0}, r"epsilon = 0.*\["),
        ((1,), {"weight_decay": -0.5}, r"weight_decay of parameter group 1 = -0.5.*\[0"),
        ((1,), {"lr": -0.5}, r"lr of parameter group 1 = .*>= 0"),
        ((1,), {"lr": float("nan")}, r"lr of parameter group 1 = .*>= 0"),
        ((1,), {"maximize": True}, r"group 1 has maximize"),
        ((1,), {"betas": (0.8, 0.99)}, r"group 1 has betas.*0\.8"),
        ((1,), {"eps": 0.5}, r"group 1 has betas and eps.*0\.5"),
    ],
    ids=["beta2", "beta1", "eps", "weight_decay", "lr", "nan", "maximize", "other betas", "other eps"],
)
def test_a_wrong_value_in_a_group_fails_the_step_and_can_be_put_right(groups, change, text):
    p = make_parameters()
    q = copies_of(p)
    optimizer, twin = st.AdamW(two_groups(p)), st.AdamW(two_groups(q))
    train(optimizer, 1, 2)
    train(twin, 1, 2)
    right = [dict(group) for group in optimizer.param_groups]
    for _ in range(2):  # the second call must not pass either
        before = copies_of(p)
        for number in groups:
            optimizer.param_groups[number].update(change)
        give_gradients(p, 3)
        with pytest.raises(ValueError, match=text):
            optimizer.step()
        assert_same_bits(p, before)
    for group, values in zip(optimizer.param_groups, right):
        group.update(values)
    train(optimizer, 3, 4)
    train(twin, 3, 4)
    assert_same_bits(p, q)


@pytest.mark.parametrize("key, value", [("betas", (0.8, 0.99)), ("eps", 1e-3)])
def test_groups_may_have_different_betas(key, value):
    p = make_parameters()
    q = copies_of(p)
    groups = lambda of: [{"params": of[:1]}, {"params": of[1:3], key: value}, {"params": of[3:]}]  # noqa: E731
    optimizer, reference = st.AdamW(groups(p), lr=0.05), torch.optim.AdamW(groups(q), lr=0.05)
    follow_torch(optimizer, reference, 3)
    other = st.AdamW(groups(copies_of(p)), lr=0.05)
    other.load_state_dict(optimizer.state_dict())
    follow_torch(other, reference, 3, first=4)
    with pytest.raises(ValueError, match="different betas or eps, but max_gradient_norm clips"):
        st.AdamW(groups(make_parameters()), max_gradient_norm=1.0)


def test_groups_whose_betas_were_equal_must_keep_them_equal():
    p = make_parameters()
    optimizer = st.AdamW([{"params": p[:1]}, {"params": p[1:]}])
    train(optimizer, 1, 1)
    optimizer.param_groups[1]["betas"] = (0.8, 0.999)
    give_gradients(p, 2)
    with pytest.raises(ValueError, match=r"group 1 has betas.*0\.8.*group 0.*equal at the construction"):
        optimizer.step()


# ----------------------------------------------------------------------------------- Parameters that come in other ways


def added(optimizer, group):
    optimizer.param_groups.append({**optimizer.param_groups[0], **group})


def extended(optimizer, group):
    optimizer.param_groups[0]["params"].extend(group["params"])


def through_a_wrapper(optimizer, group):
    """As Lightning's Fabric makes one: an object of a subclass with the attributes of the optimizer."""
    wrapper = type("Wrapper", (type(optimizer),), {}).__new__(type("Wrapper", (type(optimizer),), {}))
    wrapper.__dict__.update(optimizer.__dict__)
    wrapper.add_param_group(group)


@pytest.mark.parametrize("come", [added, extended, through_a_wrapper])
@pytest.mark.parametrize("steps", [0, 2])
def test_parameters_that_come_in_another_way_are_trained(come, steps):
    p = make_parameters()
    q = copies_of(p)
    optimizer, reference = st.AdamW(p[:2], lr=0.05), torch.optim.AdamW(q[:2], lr=0.05)
    for one, its in ((optimizer, p), (reference, q)):
        train(one, 1, steps)
        come(one, {"params": its[2:]}) if one is optimizer else one.add_param_group({"params": its[2:]})
    assert [id(one) for one in parameters_of(optimizer)] == [id(one) for one in p]
    follow_torch(optimizer, reference, 4, first=steps + 1)
    assert all(float(optimizer.state[one]["step"]) == float(reference.state[two]["step"]) for one, two in zip(p, q))


def test_a_parameter_that_is_in_two_groups_is_an_error_at_the_next_step():
    p = make_parameters()
    optimizer = st.AdamW(p)
    added(optimizer, {"params": p[:1]})
    give_gradients(p, 1)
    with pytest.raises(ValueError, match="more than once"):
        optimizer.step()


def test_parameter_groups_may_change_their_order():
    p = make_parameters()
    q = copies_of(p)
    make = lambda cls, of: cls([{"params": of[:2], "lr": 0.1}, {"params": of[2:], "weight_decay": 0.5}], lr=0.02)  # noqa: E731
    optimizer, reference = make(st.AdamW, p), make(torch.optim.AdamW, q)
    follow_torch(optimizer, reference, 2)
    for one in (optimizer, reference):
        one.param_groups.reverse()
        one.param_groups[0]["params"].reverse()
        one.param_groups[1]["lr"] = 0.3
    follow_torch(optimizer, reference, 3, first=3)


def test_parameters_that_have_gone_are_an_error_at_the_next_step():
    p = make_parameters()
    optimizer = st.AdamW([{"params": p[:2]}, {"params": p[2:]}])
    train(optimizer, 1, 1)
    gone = optimizer.param_groups.pop()
    give_gradients(p, 2)
    with pytest.raises(ValueError, match="lacks parameters that this optimizer trains"):
        optimizer.step()
    optimizer.param_groups.append(gone)
    optimizer.step()


# --------------------------------------------------------------------------------------------------- Frozen parameters


@pytest.mark.parametrize("name", CLASSES)
def test_frozen_parameters_cost_nothing(name):
    frozen = [torch.nn.Parameter(noise((1000, 100), 5), requires_grad=False)]
    trained = make_parameters()
    optimizer, without = CLASSES[name]([*frozen, *trained], **SHORT[name]), CLASSES[name](trained, **SHORT[name])
    assert optimizer.memory() == without.memory()
    before = frozen[0].clone()
    for step in range(1, 4):
        give_gradients(trained, step)
        optimizer.step()
    assert torch.equal(before, frozen[0]) and frozen[0] not in optimizer.state
    state = optimizer.state_dict()
    assert 0 not in state["state"]
    others = [torch.nn.Parameter(frozen[0].clone(), requires_grad=False), *copies_of(trained)]
    again = CLASSES[name](others, **SHORT[name])
    again.load_state_dict(copy.deepcopy(state))
    for step in range(4, 6):
        for one, its in ((optimizer, trained), (again, others[1:])):
            give_gradients(its, step)
            one.step()
    assert_same_bits(others[1:], trained)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.float64, torch.complex64])
def test_frozen_parameters_may_have_any_type(dtype):
    odd = torch.nn.Parameter(torch.zeros(10, dtype=dtype), requires_grad=False)
    p = make_parameters()
    q = copies_of(p)
    follow_torch(Without(st.AdamW([odd, *p], lr=0.05), p), Without(torch.optim.AdamW([odd, *q], lr=0.05), q), 3)


class Without:
    """An optimizer as seen without its frozen parameters."""

    def __init__(self, optimizer, trained):
        self.step, self.param_groups = optimizer.step, [{"params": trained}]


def test_an_optimizer_may_have_frozen_parameters_alone():
    p = make_parameters()
    for one in p:
        one.requires_grad_(False)
    optimizer = st.AdamW(p)
    optimizer.step()
    assert optimizer.statistics()["step"] == 0 and optimizer.memory() == {"total": 0}
    assert optimizer.state_dict()["state"] == {}
    optimizer.load_state_dict(optimizer.state_dict())
    p[1].requires_grad_(True)
    p[1].grad = noise(p[1].shape, 1)
    before = p[1].detach().clone()
    optimizer.step()
    assert not torch.equal(before, p[1]) and optimizer.statistics()["step"] == 1


@pytest.mark.parametrize("name", CLASSES)
def test_parameters_that_are_trained_later_begin_then_and_continue_bit_for_bit(name):
    def make(parameters):
        for one in parameters[:2]:
            one.requires_grad_(False)
        return CLASSES[name](parameters, lr=0.02, **SHORT[name])

    def steps(optimizer, parameters, first, last):
        for step in range(first, last + 1):
            for i, one in enumerate(parameters):
                one.requires_grad_(step > 2 or i >= 2)
                one.grad = noise(one.shape, 1000 * step + i) if one.requires_grad else None
            optimizer.step()

    p = make_parameters()
    start = copies_of(p)
    optimizer = make(p)
    steps(optimizer, p, 1, 2)
    assert_same_bits(p[:2], start[:2])
    steps(optimizer, p, 3, 5)
    assert [float(optimizer.state[one]["step"]) for one in p] == [3.0, 3.0, 5.0, 5.0]
    fresh = copies_of(start[:2])
    alone = CLASSES[name](fresh, lr=0.02, **SHORT[name])
    for step in range(3, 6):
        for i, one in enumerate(fresh):
            one.grad = noise(one.shape, 1000 * step + i)
        alone.step()
    assert_same_bits(p[:2], fresh)
    q = copies_of(p)
    resumed = make(q)
    resumed.load_state_dict(optimizer.state_dict())
    steps(optimizer, p, 6, 8)
    steps(resumed, q, 6, 8)
    assert_same_bits(q, p)


def test_clipping_of_parameters_that_are_trained_later_is_said():
    p = make_parameters()
    p[0].requires_grad_(False)
    optimizer = st.AdamW(p, max_gradient_norm=1.0)
    give_gradients(p[1:], 1)
    optimizer.step()
    p[0].requires_grad_(True)
    give_gradients(p, 2)
    with pytest.warns(RuntimeWarning, match="clipped by the norm of their own gradients"):
        optimizer.step()


# ------------------------------------------------------------------------------------------------------- Lazy modules


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_parameters_of_lazy_modules_are_trained(name):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.LazyLinear(5), torch.nn.ReLU(), torch.nn.Linear(5, 2))
    optimizer = CLASSES[name](model.parameters(), lr=0.02, **SHORT[name])
    model(torch.ones(2, 4))
    q = copies_of(model.parameters())
    other = CLASSES[name](q, lr=0.02, **SHORT[name])
    train(optimizer, 1, 4)
    train(other, 1, 4)
    assert_same_bits(list(model.parameters()), q)


# ------------------------------------------------------------------------------------------- Keywords of other optimizers


@pytest.mark.parametrize("key", ["foreach", "fused", "capturable"])
def test_keywords_of_torch_that_have_no_effect_on_values_are_accepted(key):
    p = make_parameters()
    q = copies_of(p)
    optimizer = st.AdamW(p, **{key: True})
    assert optimizer.param_groups[0][key] is True
    follow_torch(optimizer, torch.optim.AdamW(q), 2)
    with pytest.raises(ValueError, match="maximize = True, which slamb's optimizers do not support"):
        st.AdamW(p, maximize=True)


@pytest.mark.parametrize("key, value", [("maximize", True), ("differentiable", True)])
def test_what_is_not_supported_is_rejected_with_the_number_of_the_group(key, value):
    p = make_parameters()
    with pytest.raises(ValueError, match=f"group 1 has {key}"):
        st.AdamW([{"params": p[:1]}, {"params": p[1:], key: value}])


@pytest.mark.parametrize("key", ["foreach", "fused", "capturable"])
def test_what_has_no_effect_is_accepted_in_a_group(key):
    p = make_parameters()
    train(st.AdamW([{"params": p[:1], key: True}, {"params": p[1:], key: False}]), 1, 1)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_group_without_parameters_is_no_error_as_in_torch(place):
    p = make_parameters()
    q = copies_of(p)

    def groups(parameters):
        both = [{"params": parameters[:2], "lr": 0.1}, {"params": parameters[2:], "lr": 0.2}]
        return [*both[:place], {"params": [], "lr": 5.0}, *both[place:]]

    follow_torch(st.AdamW(groups(p)), torch.optim.AdamW(groups(q)), 3)


@skip_before(2, 6, "named parameters in optimizers")
def test_parameters_can_be_given_with_their_names():
    model = torch.nn.Linear(3, 2)
    optimizer = st.AdamW(model.named_parameters())
    train(optimizer, 1, 2)
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]
    other = st.AdamW(torch.nn.Linear(3, 2).named_parameters())
    other.load_state_dict(optimizer.state_dict())


# ---------------------------------------------------------------------------------------------------------- Added groups


def test_a_group_that_is_added_before_the_first_step_works_as_with_torch_adamw():
    p = make_parameters()
    q = copies_of(p)
    mine, theirs = st.AdamW(p[:2], lr=0.02), torch.optim.AdamW(q[:2], lr=0.02)
    for one, parameters in ((mine, p), (theirs, q)):
        one.add_param_group({"params": parameters[2:], "lr": 0.05, "weight_decay": 0.4})
    follow_torch(mine, theirs, 8)


@pytest.mark.parametrize("times", [(4,), (4, 4), (2, 5)], ids=["once", "twice at once", "twice"])
def test_groups_that_are_added_after_some_steps_count_their_own_steps_as_with_torch_adamw(times):
    p = make_parameters()
    q = copies_of(p)
    mine, theirs = st.AdamW(p[:2], lr=0.02), torch.optim.AdamW(q[:2], lr=0.02)
    step = 1
    for number, after in enumerate(times):
        follow_torch(mine, theirs, after + 1 - step, first=step)
        step = after + 1
        for one, parameters in ((mine, p), (theirs, q)):
            one.add_param_group({"params": [parameters[2 + number]], "lr": 0.05, "weight_decay": 0.4})
    follow_torch(mine, theirs, 8, first=step)


def test_an_added_group_follows_schedulers_and_changes_of_betas():
    p = make_parameters()
    q = copies_of(p)
    mine, theirs = st.AdamW(p[:2], lr=0.02), torch.optim.AdamW(q[:2], lr=0.02)
    follow_torch(mine, theirs, 3)
    for one, parameters in ((mine, p), (theirs, q)):
        one.add_param_group({"params": parameters[2:]})

    def change(optimizer, step):
        for number, group in enumerate(optimizer.param_groups):
            group.update(lr=0.01 * (1 + number) / step, betas=(0.9 - 0.01 * step, 0.99), weight_decay=0.1 * number)

    follow_torch(mine, theirs, 6, change, first=4)


@pytest.mark.parametrize("name", CLASSES)
def test_a_state_with_added_groups_is_loaded_by_an_optimizer_that_was_made_with_all_groups(name):
    p = make_parameters()
    optimizer = CLASSES[name](p[:1], **SHORT[name])
    train(optimizer, 1, 3)
    optimizer.add_param_group({"params": p[1:3], "lr": 0.01})
    train(optimizer, 4, 5)
    optimizer.add_param_group({"params": p[3:], "weight_decay": 0.5})
    train(optimizer, 6, 7)
    q = copies_of(p)
    resumed = CLASSES[name]([{"params": q[:1]}, {"params": q[1:3]}, {"params": q[3:]}], **SHORT[name])
    resumed.load_state_dict(optimizer.state_dict())
    for step in range(8, 12):
        train(optimizer, step, step)
        train(resumed, step, step)
        assert_same_bits(q, p)
    assert_same_bits(resumed.state_dict(), optimizer.state_dict())


def test_a_state_without_added_groups_is_loaded_by_an_optimizer_that_has_added_one():
    p = make_parameters()
    optimizer = st.AdamW([{"params": p[:1]}, {"params": p[1:]}])
    train(optimizer, 1, 3)
    q = copies_of(p)
    other = st.AdamW(q[:1])
    train(other, 1, 1)
    other.add_param_group({"params": q[1:]})
    for one, two in zip(q, p):
        one.data.copy_(two.data)
    other.load_state_dict(optimizer.state_dict())
    train(optimizer, 4, 6)
    train(other, 4, 6)
    assert_same_bits(q, p)


@pytest.mark.parametrize(
    "wrong, text",
    [
        (lambda: {"params": [torch.zeros(2, dtype=torch.float64, requires_grad=True)]}, "parameter 2"),
        (lambda: {"params": [torch.zeros(2)], "maximize": True}, "group 1 has maximize"),
        (lambda: {"params": [torch.zeros(2)], "weight_decay": -1.0}, "weight_decay"),
    ],
    ids=["type", "maximize", "weight_decay"],
)
def test_a_group_that_is_rejected_leaves_nothing_behind(wrong, text):
    p = make_parameters()
    q = copies_of(p)
    optimizer, twin = st.AdamW(p[:2]), st.AdamW(q[:2])
    for first, last in ((1, 2), (3, 4)):
        with pytest.raises(ValueError, match=text):
            optimizer.add_param_group(wrong())
        assert len(optimizer.param_groups) == 1
        train(optimizer, first, last)
        train(twin, first, last)
    assert_same_bits(p, q)
    assert_same_bits(optimizer.state_dict(), twin.state_dict())


def test_a_gradient_of_an_added_group_that_is_rejected_fails_the_step_before_any_group_has_changed():
    p = make_parameters([(3, 2), (5, 3)])
    q = copies_of(p)
    optimizer, twin = st.AdamW(p[:1]), st.AdamW(q[:1])
    for one, parameters in ((optimizer, p), (twin, q)):
        train(one, 1, 1)
        one.add_param_group({"params": parameters[1:]})
    before = copies_of(p)
    give_gradients(p, 2)
    p[1].grad = torch.ones(5, 3).to_sparse()
    with pytest.raises(ValueError, match="layout"):
        optimizer.step()
    assert_same_bits(p, before)
    p[1].grad = None
    train(optimizer, 2, 3)
    train(twin, 2, 3)
    assert_same_bits(p, q)


def test_an_added_group_without_parameters_is_no_error_as_in_torch():
    p = make_parameters()
    q = copies_of(p)
    mine, theirs = st.AdamW(p), torch.optim.AdamW(q)
    follow_torch(mine, theirs, 2)
    mine.add_param_group({"params": []})
    theirs.add_param_group({"params": []})
    follow_torch(mine, theirs, 2, first=3)


def test_statistics_and_memory_include_added_groups():
    p = make_parameters()
    optimizer = st.AdamW(p[:2])
    train(optimizer, 1, 2)
    before = optimizer.memory()["total"]
    optimizer.add_param_group({"params": p[2:]})
    train(optimizer, 3, 3)
    assert optimizer.memory()["total"] > before
    assert optimizer.statistics()["step"] == 3
    assert parameters_of(optimizer) == p
