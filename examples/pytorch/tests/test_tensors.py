"""Types and layouts of parameters and gradients, and what users do to parameters between steps."""

import copy

import numpy as np
import pytest
import torch
from conftest import (
    CLASSES,
    SHAPES,
    SHORT,
    LambOracle,
    assert_near,
    assert_same_bits,
    bytes_of,
    contents,
    copies_of,
    follow_torch,
    give_gradients,
    gradients_of,
    make_parameters,
    noise,
    parameters_of,
    train,
)

import slamb.torch as st
from slamb.torch import _tensors

SIXTEEN = [torch.bfloat16, torch.float16]
MEMORY_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


# ------------------------------------------------------------------------------------------------------ Types of 16 bits


@pytest.mark.parametrize("dtype", SIXTEEN)
@pytest.mark.parametrize("name", CLASSES)
def test_parameters_of_16_bits_are_those_of_a_float32_training_rounded(name, dtype):
    p = make_parameters(dtype=dtype)
    q = [torch.nn.Parameter(one.detach().float()) for one in p]
    optimizer, twin = CLASSES[name](p, **SHORT[name]), CLASSES[name](q, **SHORT[name])
    for step in range(1, 8):
        give_gradients(p, step)
        for one, two in zip(p, q):
            two.grad = one.grad.float()
        optimizer.step()
        twin.step()
        assert_same_bits(p, [one.to(dtype) for one in q])


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_adamw_of_16_bits_follows_the_equations_with_parameters_in_double_precision(dtype):
    p = make_parameters(dtype=dtype)
    optimizer, oracle = st.AdamW(p, lr=0.02), LambOracle(p, adapt=False)
    for step in range(1, 21):
        give_gradients(p, step)
        gradients = gradients_of(p)
        optimizer.step()
        oracle.step(gradients, 0.02)
        assert_near(p, oracle.p, rtol=2.0**-8 if dtype == torch.bfloat16 else 2.0**-10, atol=2e-6)


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_steps_that_are_too_small_for_16_bits_add_up_in_the_master_copy(dtype):
    p = [torch.nn.Parameter(torch.ones(10, dtype=dtype))]
    optimizer = st.AdamW(p, lr=1e-5, weight_decay=0.0)
    moved = []
    for _ in range(1000):
        p[0].grad = torch.ones_like(p[0])
        optimizer.step()
        moved.append(1.0 - p[0].detach()[0].item())
    assert moved[9] == 0.0
    assert abs(moved[-1] - 1000 * 1e-5) < 2.0**-8


def test_steps_that_are_too_small_for_16_bits_add_up_by_rounding_at_random():
    p = [torch.nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16))]
    optimizer = st.AdamW(p, lr=1e-4, weight_decay=0.0, rounding="stochastic")
    for _ in range(20):
        p[0].grad = torch.ones_like(p[0])
        optimizer.step()
    assert abs(float((1.0 - p[0].detach().double()).mean()) - 20 * 1e-4) < 3e-4


def test_rounding_at_random_depends_on_its_seed_and_on_nothing_else():
    results = []
    for seed in (0, 0, 7):
        torch.manual_seed(len(results))
        p = make_parameters(dtype=torch.bfloat16)
        train(st.AdamW(p, lr=1e-3, rounding="stochastic", rounding_seed=seed), 1, 5)
        results.append(contents(p))
    assert results[0] == results[1] != results[2]


def test_random_numbers_of_torch_are_not_used():
    before = torch.get_rng_state()
    p = make_parameters(dtype=torch.bfloat16)
    train(st.Slamb(p, rounding="stochastic", compressor="random_k+int8", k=0.5, dense_below=0), 1, 3)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_a_model_may_mix_all_types(rounding):
    types = [torch.float32, torch.bfloat16, torch.float16, torch.float32]
    p = [torch.nn.Parameter(noise(shape, i, dtype)) for i, (shape, dtype) in enumerate(zip(SHAPES, types))]
    optimizer, oracle = st.AdamW(p, lr=0.02, rounding=rounding), LambOracle(p, adapt=False)
    for step in range(1, 11):
        give_gradients(p, step)
        gradients = gradients_of(p)
        optimizer.step()
        oracle.step(gradients, 0.02)
    assert [one.dtype for one in p] == types
    assert_near(p[::3], oracle.p[::3])
    assert_near(p, oracle.p, rtol=2.0**-8, atol=2e-3 if rounding == "nearest" else 5e-2)


# --------------------------------------------------------------------------- What users write to parameters between steps


def write_by_load_state_dict(p, values):
    torch.nn.ParameterList(p).load_state_dict({str(i): v for i, v in enumerate(values)})


def write_in_place(p, values):
    with torch.no_grad():
        for one, value in zip(p, values):
            one.copy_(value)


def write_to_data(p, values):
    for one, value in zip(p, values):
        one.data.copy_(value)


# What is written through .data is not noticed, and reload_parameters() takes it over.
WRITES_THAT_NEED_A_CALL = [write_to_data]


def write_data(p, values):
    for one, value in zip(p, values):
        one.data = value.clone()


WRITES = [write_by_load_state_dict, write_in_place, write_to_data, write_data]


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
@pytest.mark.parametrize("when", [0, 2])
def test_what_is_written_to_parameters_between_steps_is_where_the_next_step_begins(write, when, dtype, rounding):
    p = make_parameters(dtype=dtype)
    optimizer = st.AdamW(p, lr=1e-3, rounding=rounding)
    train(optimizer, 1, when)
    values = [one.detach() for one in make_parameters(dtype=dtype, seed=5)]
    write(p, values)
    if write in WRITES_THAT_NEED_A_CALL:
        optimizer.reload_parameters()
    train(optimizer, when + 1, when + 2)
    # Two steps move an element by little more than 2e-3. Old values differ by about 1.
    assert_near(p, values, rtol=2.0**-6, atol=5e-3)


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
def test_writing_back_the_same_values_keeps_the_digits_of_the_master_copy(write):
    p = make_parameters(dtype=torch.bfloat16)
    q = copies_of(p)
    optimizer, twin = st.AdamW(p, lr=1e-4), st.AdamW(q, lr=1e-4)
    for step in range(1, 30):
        train(optimizer, step, step)
        train(twin, step, step)
        write(p, [one.detach().clone() for one in p])
    assert_same_bits(p, q)


def test_a_write_to_parameters_with_gaps_is_where_the_next_step_begins():
    for dtype in (torch.float32, torch.bfloat16):
        p = [torch.nn.Parameter(noise((4, 6), 1, dtype)[:, ::2])]
        optimizer = st.AdamW(p, lr=1e-3)
        train(optimizer, 1, 2)
        values = [noise((4, 3), 9, dtype)]
        write_in_place(p, values)
        train(optimizer, 3, 4)
        assert_near(p, values, rtol=2.0**-6, atol=5e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("write", WRITES[:2], ids=lambda write: write.__name__)
@pytest.mark.parametrize("name", ["adamw", "slamb"])
def test_a_state_that_is_saved_after_a_write_to_parameters_has_what_was_written(name, write, dtype):
    p = make_parameters(dtype=dtype)
    optimizer = CLASSES[name](p, lr=1e-3, **SHORT[name])
    write(p, [one.detach() for one in make_parameters(dtype=dtype, seed=5)])
    q = copies_of(p)
    CLASSES[name](q, **SHORT[name]).load_state_dict(optimizer.state_dict())
    assert_same_bits(q, p)


def test_loading_a_state_keeps_what_was_written_to_parameters_with_gaps():
    p = [torch.nn.Parameter(noise((4, 6), 1)[:, ::2])]
    optimizer = st.AdamW(p)
    train(optimizer, 1, 2)
    state = optimizer.state_dict()
    values = [noise((4, 3), 9)]
    write_in_place(p, values)
    optimizer.load_state_dict(state)
    assert_same_bits(p, values)


# ------------------------------------------------------------------------------------------------------------- Rejected


@pytest.mark.parametrize(
    "wrong, text",
    [
        (lambda: torch.zeros(2, dtype=torch.float64), "float64.*requires_grad=False.*convert"),
        (lambda: torch.zeros(2, dtype=torch.complex64), "complex64"),
        (lambda: torch.zeros(2, device="meta"), "meta"),
        (lambda: torch.eye(3).to_sparse(), "sparse"),
        (lambda: torch.eye(3).to_sparse_csr(), "sparse"),
        (lambda: torch.zeros(1, 3).expand(4, 3), "share|overlap|stride|expand"),
    ],
    ids=["float64", "complex", "meta", "sparse", "sparse csr", "expanded"],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_a_parameter_that_is_not_supported_is_rejected_with_its_number(wrong, text):
    with pytest.raises(ValueError, match=f"(parameter|tensor) 1.*({text})"):
        st.AdamW([torch.nn.Parameter(torch.zeros(2)), wrong().requires_grad_()])


def test_a_model_on_a_device_without_memory_is_rejected():
    with pytest.raises(ValueError, match="meta"):
        st.AdamW(torch.nn.Linear(3, 2, device="meta").parameters())


def test_parameters_that_are_replaced_in_their_group_are_rejected():
    for replace in (
        lambda params: params.__setitem__(1, torch.nn.Parameter(torch.ones(3))),
        lambda params: params.pop(),
    ):
        p = make_parameters([(2,), (3,)])
        optimizer = st.AdamW(p)
        train(optimizer, 1, 1)
        before = copies_of(p)
        own = list(optimizer.param_groups[0]["params"])
        replace(optimizer.param_groups[0]["params"])
        for one in (*p, *optimizer.param_groups[0]["params"]):
            one.grad = torch.ones_like(one)
        with pytest.raises(ValueError, match="lacks parameters that this optimizer trains.*add_param_group"):
            optimizer.step()
        assert_same_bits(p, before)
        optimizer.param_groups[0]["params"] = own
        optimizer.step()


def test_a_backward_pass_through_older_values_is_an_error_after_each_call_that_changes_parameters():
    increment = getattr(torch.autograd.graph, "increment_version", None)
    if increment is None:
        pytest.skip("this torch has no such function")
    p = make_parameters([(3,)])
    optimizer = st.Slamb(p)
    train(optimizer, 1, 2)
    saved = copy.deepcopy(optimizer.state_dict())
    train(optimizer, 3, 3)
    for change in (
        lambda: optimizer.load_state_dict(saved),
        lambda: optimizer.broadcast_parameters(),
        lambda: optimizer.synchronize_parameters(),
        lambda: optimizer.with_averaged_parameters(lambda: None),
        lambda: train(optimizer, 4, 4),
    ):
        p[0].grad = None
        loss = p[0].square().sum()
        change()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    # A parameter without a gradient does not change in a step, and a step that fails changes none.
    p[0].grad = None
    loss = p[0].square().sum()
    optimizer.step()
    optimizer.param_groups[0]["lr"] = -1.0
    p[0].grad = torch.ones(3)
    with pytest.raises(ValueError, match="lr of parameter group 0"):
        optimizer.step()
    loss.backward()


def test_older_torch_is_told_of_each_changed_tensor(monkeypatch):
    told = []

    def of_one(tensor):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError("increment_version() takes a tensor")
        told.append(tensor)

    monkeypatch.setattr(torch.autograd.graph, "increment_version", of_one, raising=False)
    monkeypatch.setattr(_tensors, "_increment_version", _tensors._find_increment_version())
    p = make_parameters([(2,), (3,)])
    optimizer = st.AdamW(p)
    give_gradients(p, 1)
    p[0].grad = None
    optimizer.step()
    assert [id(one) for one in told] == [id(p[1])]


def test_tensors_whose_changes_cannot_be_noticed_are_rejected_if_they_must_be():
    with torch.inference_mode():
        short, full = (torch.nn.Parameter(torch.ones(3, dtype=one)) for one in (torch.bfloat16, torch.float32))
    with pytest.raises(ValueError, match="parameter 1 was made in torch.inference_mode"):
        st.AdamW([full, short])
    st.AdamW([full])
    st.AdamW([short], rounding="stochastic")


def test_nested_tensors_are_rejected():
    if not hasattr(torch, "nested"):
        pytest.skip("this torch has none")
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(ValueError, match="parameter 0 is nested"):
        st.AdamW([torch.nn.Parameter(nested)])


class Wrapper(torch.Tensor):
    """A subclass whose values are in another tensor, as those of quantized weights are."""

    @staticmethod
    def __new__(cls, values):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=values.dtype, device=values.device)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return args[0]  # of detach()


def test_tensors_without_memory_of_their_own_are_rejected():
    p = make_parameters([(2,), (3,)])
    optimizer = st.AdamW(p)
    train(optimizer, 1, 1)
    before = copies_of(p)
    give_gradients(p, 2)
    p[1].grad = Wrapper(torch.ones(3))
    with pytest.raises(ValueError, match="gradient of parameter 1 is a Wrapper, which has no memory"):
        optimizer.step()
    assert_same_bits(p, before)
    with pytest.raises(ValueError, match="parameter 0 is a .*, which has no memory"):
        st.AdamW([torch.nn.Parameter(Wrapper(torch.ones(3)))])


def test_a_sparse_gradient_is_rejected_with_the_number_of_its_parameter_and_advice():
    p = make_parameters([(2, 2), (5, 3)])
    q = copies_of(p)
    optimizer, twin = st.AdamW(p), st.AdamW(q)
    train(optimizer, 1, 1)
    train(twin, 1, 1)
    for _ in range(2):
        before = copies_of(p)
        p[1].grad = torch.ones(5, 3).to_sparse()
        with pytest.raises(ValueError, match="gradient of parameter 1.*sparse=False"):
            optimizer.step()
        assert_same_bits(p, before)
    p[1].grad = None
    train(optimizer, 2, 3)
    train(twin, 2, 3)
    assert_same_bits(p, q)


def test_an_embedding_with_sparse_gradients_is_rejected_and_with_dense_ones_trained():
    model = torch.nn.Embedding(6, 2, sparse=True)
    optimizer = st.AdamW(model.parameters())
    model(torch.tensor([1, 4])).sum().backward()
    with pytest.raises(ValueError, match="gradient of parameter 0"):
        optimizer.step()
    model.sparse = False
    optimizer.zero_grad(set_to_none=True)
    model(torch.tensor([1, 4])).sum().backward()
    optimizer.step()


@pytest.mark.parametrize(
    "before, after",
    [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32), (torch.float32, torch.float64)],
)
def test_a_model_that_is_converted_after_the_construction_is_rejected_until_it_is_converted_back(before, after):
    model = torch.nn.Linear(3, 2).to(before)
    twin_model = copy.deepcopy(model)
    optimizer, twin = st.AdamW(model.parameters()), st.AdamW(twin_model.parameters())
    train(optimizer, 1, 2)
    train(twin, 1, 2)
    values = copies_of(model.parameters())
    model.to(after)
    for _ in range(2):
        give_gradients(list(model.parameters()), 3)
        with pytest.raises(ValueError, match=f"parameter 0 .*{after}"):
            optimizer.step()
    model.to(before)
    write_in_place(list(model.parameters()), values)
    model.zero_grad(set_to_none=True)
    train(optimizer, 3, 4)
    train(twin, 3, 4)
    assert_same_bits(list(model.parameters()), list(twin_model.parameters()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "views",
    [
        lambda base: (base, base),
        lambda base: (base[:3], base[2:]),
        lambda base: (base[:, :4], base[:, 2:]),
        lambda base: (base, base[:, ::2]),
    ],
    ids=["same memory", "rows", "columns", "strided"],
)
def test_parameters_that_share_memory_are_rejected(views, dtype):
    base = torch.zeros(4, 6, dtype=dtype)
    with pytest.raises(ValueError, match="share memory"):
        st.AdamW([torch.nn.Parameter(view) for view in views(base)])


def test_parameters_that_begin_to_share_memory_are_rejected_at_every_step_until_they_do_not():
    p = make_parameters([(4, 3), (4, 3)])
    q = copies_of(p)
    optimizer, twin = st.AdamW(p), st.AdamW(q)
    train(optimizer, 1, 1)
    train(twin, 1, 1)
    own = p[1].data
    p[1].data = p[0].data
    for _ in range(2):
        give_gradients(p, 2)
        with pytest.raises(ValueError, match="share memory"):
            optimizer.step()
    p[1].data = own
    train(optimizer, 2, 3)
    train(twin, 2, 3)
    assert_same_bits(p, q)


def test_parameters_may_be_parts_of_one_storage():
    base = noise((4, 6), 1)
    p = [torch.nn.Parameter(base[:, :3]), torch.nn.Parameter(base[:, 3:])]
    follow_torch(st.AdamW(p), torch.optim.AdamW(copies_of(p)), 4)
    flat = noise((20,), 1)
    p = [torch.nn.Parameter(flat[:12].view(3, 4)), torch.nn.Parameter(flat[12:])]
    follow_torch(st.AdamW(p), torch.optim.AdamW(copies_of(p)), 4)


def test_tied_parameters_are_trained_once_in_a_model_and_rejected_twice_in_a_list():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    optimizer = st.AdamW(model.parameters())
    assert len(parameters_of(optimizer)) == 1
    train(optimizer, 1, 1)
    with pytest.warns(UserWarning, match="duplicate"), pytest.raises(ValueError, match="share memory"):
        st.AdamW([model[0].weight, model[1].weight])
    with pytest.raises(ValueError, match="more than one parameter group"):
        st.AdamW([{"params": [model[0].weight]}, {"params": [model[1].weight]}])


# ------------------------------------------------------------------------------------------------------------- Layouts


def with_gaps(shape, seed, dtype=torch.float32):
    """A tensor of which each second element of its storage is used."""
    return noise((*shape, 2), seed, dtype)[..., 0]


def transposed(x):
    return x.permute(tuple(reversed(range(x.dim()))))


LAYOUTS = {
    "channels_last": lambda: noise((4, 3, 2, 5), 1).to(memory_format=torch.channels_last),
    "channels_last_3d": lambda: noise((4, 3, 2, 5, 2), 1).to(memory_format=torch.channels_last_3d),
    "transposed": lambda: noise((5, 4), 1).t(),
    "gaps": lambda: with_gaps((5, 4), 1),
    "transposed with gaps": lambda: noise((6, 8), 1).t()[::2],
    "one dimension with gaps": lambda: noise((9,), 1)[::3],
    "offset in a storage": lambda: noise((21,), 1)[1:],
    "size 1": lambda: noise((1, 4, 1, 1), 1).to(memory_format=torch.channels_last),
    "no elements": lambda: torch.zeros(0, 3),
    "no dimensions": lambda: noise((), 1),
}
GRADIENTS = {
    "contiguous": lambda g, p: g.contiguous(),
    "like the parameter": lambda g, p: torch.empty_strided(p.shape, p.stride()).copy_(g),
    "transposed": lambda g, p: transposed(transposed(g).contiguous()),
    "gaps": lambda g, p: torch.stack([g, g], -1)[..., 1],
    "expanded": lambda g, p: g.reshape(-1)[:1].reshape([1] * g.dim()).expand(g.shape) if g.numel() else g,
}


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_every_layout_of_parameters_and_gradients_gives_the_same_numbers(name, layout, gradient):
    p = [torch.nn.Parameter(noise((3,), 8)), torch.nn.Parameter(LAYOUTS[layout]()), torch.nn.Parameter(noise((2, 2), 9))]
    strides = p[1].stride()
    optimizer = CLASSES[name](p, lr=0.02)
    oracle = LambOracle(p, adapt=name == "lamb", eps=optimizer.defaults["eps"])
    for step in range(1, 7):
        give_gradients(p, step)
        p[1].grad = GRADIENTS[gradient](p[1].grad, p[1])
        gradients = gradients_of(p)
        optimizer.step()
        oracle.step(gradients, 0.02)
        assert_near(p, oracle.p)
    assert p[1].stride() == strides


def test_elements_between_those_of_a_parameter_with_gaps_stay_as_they_are():
    storage = noise((5, 8), 1)
    before = storage.clone()
    p = [torch.nn.Parameter(storage[:, ::2])]
    train(st.AdamW(p, lr=0.1), 1, 3)
    assert_same_bits(storage[:, 1::2], before[:, 1::2])
    assert not torch.equal(storage[:, ::2], before[:, ::2])


def test_optimizers_accept_a_model_whose_parameters_all_have_no_elements():
    optimizer = st.AdamW([torch.nn.Parameter(torch.zeros(0)), torch.nn.Parameter(torch.zeros(0, 4))])
    train(optimizer, 1, 2)
    optimizer.load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parameters_may_move_between_steps(dtype):
    p = make_parameters(dtype=dtype)
    q = copies_of(p)
    optimizer, twin = st.AdamW(p), st.AdamW(q)
    for step in range(1, 7):
        for one in p:
            one.data = one.data.clone()
        train(optimizer, step, step)
        train(twin, step, step)
        assert_same_bits(p, q)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CLASSES)
def test_parameters_may_move_between_a_step_and_the_saving_or_loading_of_a_state(name, dtype):
    p = make_parameters(dtype=dtype)
    optimizer = CLASSES[name](p, lr=0.02, **SHORT[name])
    train(optimizer, 1, 3)
    wanted = contents(p)
    left = [one.data for one in p]  # keeps the old memory, where nothing may be read or written any more
    for one in p:
        one.data = one.data.clone()
    for one in left:
        one.fill_(7.0)
    state = optimizer.state_dict()
    q = make_parameters(dtype=dtype)
    resumed = CLASSES[name](q, lr=0.02, **SHORT[name])
    before = [one.data for one in q]
    for one, two in zip(q, p):
        one.data = two.data.clone()
    resumed.load_state_dict(state)
    norms = [one.statistics(with_norms=True)["parameter_norm"] for one in (optimizer, resumed)]
    assert norms[0] == norms[1] < 30
    assert contents(p) == contents(q) == wanted
    train(optimizer, 4, 6)
    train(resumed, 4, 6)
    assert_same_bits(q, p)
    assert_same_bits(before, make_parameters(dtype=dtype))
    assert all(bool((one == 7.0).all()) for one in left)


@pytest.mark.parametrize(
    "change",
    [lambda x, room: room[:2], lambda x, room: room[:4], lambda x, room: x[:2], lambda x, room: x.view(6, 3)[:, :2]],
    ids=["fewer", "more", "fewer of the same memory", "others of the same memory"],
)
def test_parameters_whose_size_has_changed_are_rejected_until_it_is_as_before(change):
    p = [torch.nn.Parameter(noise((3, 6), 1)), torch.nn.Parameter(noise((5,), 2))]
    q = copies_of(p)
    optimizer, twin = st.AdamW(p), st.AdamW(q)
    train(optimizer, 1, 2)
    train(twin, 1, 2)
    own, room = p[0].data, torch.ones(40, 6)
    p[0].data = change(own, room)
    for _ in range(2):
        p[0].grad = torch.ones(40, 6).resize_(p[0].shape)  # has room for more elements
        with pytest.raises(ValueError, match="parameter 0.*(size|shape)"):
            optimizer.step()
        assert float(room.sum()) == 240.0
    p[0].data = own
    p[0].grad = None
    train(optimizer, 3, 4)
    train(twin, 3, 4)
    assert_same_bits(p, q)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.contiguous(memory_format=MEMORY_FORMATS[x.dim()]),
        lambda x: transposed(transposed(x).contiguous()),
        lambda x: torch.stack([x, x], -1)[..., 0],
    ],
    ids=["channels_last", "transposed", "gaps"],
)
def test_a_layout_that_changes_between_steps_does_not_mix_up_elements(change, dtype):
    p = make_parameters([(4, 3, 2, 5), (3,)], dtype)
    q = copies_of(p)
    optimizer, twin = st.AdamW(p, lr=0.02), st.AdamW(q, lr=0.02)
    for layout in (lambda x: x, change, lambda x: x.contiguous()):
        p[0].data = layout(p[0].data)
        for step in range(1, 4):
            train(optimizer, step, step)
            train(twin, step, step)
            assert_near(p, q, atol=2e-2 if dtype == torch.bfloat16 else 1e-6)


def test_a_state_of_parameters_in_another_layout_is_loaded_as_it_is_meant_or_rejected():
    p = make_parameters([(4, 3, 2, 5), (3,)])
    q = copies_of(p)
    q[0].data = q[0].data.contiguous(memory_format=torch.channels_last)
    optimizer, other = st.AdamW(p, lr=0.02), st.AdamW(q, lr=0.02)
    train(optimizer, 1, 3)
    write_in_place(q, p)
    try:
        other.load_state_dict(optimizer.state_dict())
    except ValueError as error:
        assert "parameter 0" in str(error)
        return
    train(optimizer, 4, 6)
    train(other, 4, 6)
    assert_near(q, p)


def test_a_convolution_in_channels_last_is_trained_as_with_torch_adamw():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 3))
    model = model.to(memory_format=torch.channels_last)
    other = copy.deepcopy(model)
    optimizers = st.AdamW(model.parameters(), lr=0.01), torch.optim.AdamW(other.parameters(), lr=0.01)
    x = noise((2, 3, 8, 8), 3).to(memory_format=torch.channels_last)
    for _ in range(5):
        for network, optimizer in zip((model, other), optimizers):
            optimizer.zero_grad()
            (network(x) ** 2).mean().backward()
            optimizer.step()
    assert_near(list(model.parameters()), list(other.parameters()), rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------- The helpers of these tests can fail


def test_the_writes_of_these_tests_write():
    for write in WRITES:
        p = make_parameters()
        values = [one.detach() for one in make_parameters(seed=5)]
        with pytest.raises(AssertionError):
            assert_near(p, values, atol=5e-3)
        write(p, values)
        assert_same_bits(p, values)


def test_the_layouts_of_these_tests_are_what_they_are_called():
    is_dense = {name: make().is_contiguous() for name, make in LAYOUTS.items()}
    assert [name for name, plain in is_dense.items() if plain] == [
        "offset in a storage",
        "size 1",
        "no elements",
        "no dimensions",
    ]
    p = noise((3, 4), 1)
    strides = {name: make(noise((3, 4), 2), p).stride() for name, make in GRADIENTS.items()}
    assert strides["transposed"] == (1, 3) and strides["gaps"] == (8, 2) and strides["expanded"] == (0, 0)
    assert bytes_of(p.t()) != bytes_of(p)
    assert np.array_equal(np.frombuffer(bytes_of(p.t()), np.float32).reshape(4, 3), p.t().numpy())


# ------------------------------------------------------------------------ What is not seen in addresses and numbers of elements


def test_a_parameter_of_another_type_in_the_same_memory_is_rejected():
    p = torch.nn.Parameter(torch.ones(1000))
    optimizer = st.AdamW([p])
    train(optimizer, 1, 1)
    p.data = p.data.view(torch.bfloat16)[:1000]
    p.grad = torch.ones_like(p)
    with pytest.raises(ValueError, match="parameter 0.*torch.float32.*torch.bfloat16"):
        optimizer.step()


@pytest.mark.parametrize("beside", [torch.contiguous_format, torch.channels_last])
def test_a_parameter_of_another_shape_with_as_many_elements_is_rejected(beside):
    a = torch.nn.Parameter(noise((2, 3, 4, 4), 1).contiguous(memory_format=beside))
    b = torch.nn.Parameter(torch.ones(30, 40))
    optimizer = st.AdamW([a, b])
    b.data = torch.ones(20, 60)
    a.grad, b.grad = torch.ones_like(a), torch.ones_like(b)
    with pytest.raises(ValueError, match=r"parameter 1.*\(30, 40\).*\(20, 60\)"):
        optimizer.step()
    assert bool((b == 1.0).all())


def test_a_gradient_whose_memory_has_the_other_sign_moves_the_parameter_as_with_torch():
    x = torch.nn.Parameter(torch.zeros(1))
    y = torch.nn.Parameter(torch.zeros(1))
    for p, kind in ((x, st.AdamW), (y, torch.optim.AdamW)):
        z = torch.complex(torch.ones(1), p).conj()
        torch.view_as_real(z.resolve_conj())[..., 1].sum().backward()
        kind([p], lr=0.1).step()
    assert_near([x], [y])
    assert float(x.detach()) > 0.0
    p = torch.nn.Parameter(torch.zeros(5))
    p.grad = torch._neg_view(torch.ones(5))
    st.AdamW([p], lr=0.1).step()
    assert bool((p > 0.0).all())


def test_a_parameter_that_is_expanded_later_is_rejected_before_the_step():
    p = torch.nn.Parameter(torch.ones(3, 4))
    optimizer = st.AdamW([p])
    train(optimizer, 1, 1)
    p.data = torch.ones(3, 1).expand(3, 4)
    p.grad = torch.ones(3, 4)
    with pytest.raises(ValueError, match="parameter 0 is expanded"):
        optimizer.step()
    assert optimizer._parts[0].core.steps == 1
