"""Steps of optimizers in CUDA graphs, beside the same optimizers without graphs, bit for bit. Skipped where there is no GPU or the
build has no module for it. graph_ranks.py does the same on several ranks."""

import contextlib
import copy

import pytest
import torch
from test_gpu import _reason_to_skip

import slamb.torch

pytestmark = pytest.mark.skipif(_reason_to_skip() is not None, reason=str(_reason_to_skip()))

WARM_UP = 3  # steps before a capture

# Optimizers that can be captured after the steps of a warm-up, by names for the tests.
CAPTURABLE = {
    "adamw": lambda p, **o: slamb.torch.AdamW(p, **o),
    "adamw, clipped": lambda p, **o: slamb.torch.AdamW(p, max_gradient_norm=0.1, **o),
    "adamw, int8": lambda p, **o: slamb.torch.AdamW(p, compressor="int8", compress_single_rank=True, **o),
    "lamb": lambda p, **o: slamb.torch.Lamb(p, **o),
    "lamb, clipped": lambda p, **o: slamb.torch.Lamb(p, max_gradient_norm=0.1, **o),
    "lamb, int8": lambda p, **o: slamb.torch.Lamb(p, compressor="int8", compress_single_rank=True, **o),
    "slamb": lambda p, **o: slamb.torch.Slamb(p, local_steps=0, dense_below=0, **o),
    "slamb, int8": lambda p, **o: slamb.torch.Slamb(p, local_steps=0, dense_below=0, compressor="random_k+int8", **o),
    "one_bit_adam": lambda p, **o: slamb.torch.OneBitAdam(p, warm_up_steps=2, compress_single_rank=True, **o),
    "one_bit_lamb": lambda p, **o: slamb.torch.OneBitLamb(p, warm_up_steps=2, compress_single_rank=True, **o),
}
ROUNDINGS = {
    "float32": (torch.float32, "nearest"),
    "bf16 with masters": (torch.bfloat16, "nearest"),
    "bf16 by chance": (torch.bfloat16, "stochastic"),
}


class Model(torch.nn.Module):
    """A model whose passes are products and sums of single elements, so that their bits are the same in a graph."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        shapes = ((130, 70), (129,), (5, 4, 3), ())
        self.weights = torch.nn.ParameterList(torch.randn(shape, generator=generator).to("cuda", dtype) for shape in shapes)

    def forward(self, x):
        return sum(((p - x[i].to(p.dtype)) * (p - x[i + 1].to(p.dtype))).float().sum() for i, p in enumerate(self.weights))


def batch(step):
    return torch.randn(5, generator=torch.Generator().manual_seed(100 + step)).cuda()


def iterate(model, optimizer, x):
    """One iteration without a graph."""
    optimizer.zero_grad()
    loss = model(x)
    loss.backward()
    optimizer.step()
    return loss


class Captured:
    """An iteration as a graph."""

    def __init__(self, model, optimizer, body=iterate, first=0):
        self.x = batch(0)
        side = torch.cuda.Stream()  # as PyTorch asks for
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for step in range(first, first + WARM_UP):
                self.x.copy_(batch(step))
                body(model, optimizer, self.x)
        torch.cuda.current_stream().wait_stream(side)
        optimizer.zero_grad()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.result = body(model, optimizer, self.x)

    def replay(self, step):
        self.x.copy_(batch(step))
        self.graph.replay()


def bits_of(model):
    return [p.detach().float().cpu() for p in model.parameters()]


def assert_same_bits(a, b):
    assert all(torch.equal(x, y) for x, y in zip(bits_of(a), bits_of(b)))
    assert all(bool(torch.isfinite(x).all()) for x in bits_of(a))


def twins(make, dtype=torch.float32, **options):
    """Two equal models, each with an optimizer."""
    model = Model(dtype)
    other = copy.deepcopy(model)
    return model, make(model.parameters(), **options), other, make(other.parameters(), **options)


@pytest.mark.parametrize("kind", ROUNDINGS)
@pytest.mark.parametrize("name", CAPTURABLE)
def test_replays_of_an_iteration_have_the_bits_of_iterations(name, kind):
    dtype, rounding = ROUNDINGS[kind]
    model, optimizer, other, reference = twins(CAPTURABLE[name], dtype, lr=1e-2, rounding=rounding)
    start = copy.deepcopy(model)
    captured = Captured(model, optimizer)
    for step in range(WARM_UP, 12):
        captured.replay(step)
    for step in range(12):
        iterate(other, reference, batch(step))
    assert_same_bits(model, other)
    assert any(not torch.equal(a, b) for a, b in zip(bits_of(model), bits_of(start)))
    assert optimizer.statistics()["step"] == reference.statistics()["step"] == 12
    assert all(float(optimizer.state[p]["step"]) == 12.0 for p in model.parameters())


@pytest.mark.parametrize("name", ["adamw", "lamb", "slamb", "one_bit_lamb"])
def test_a_replay_reads_learning_rates_that_are_tensors_on_the_gpu(name):
    rate = torch.tensor(1e-2, device="cuda")
    model = Model()
    other = copy.deepcopy(model)
    groups = list(model.parameters()), list(other.parameters())
    ours, theirs = (
        CAPTURABLE[name]([{"params": of[:2], "lr": one}, {"params": of[2:], "lr": 0.005}])
        for of, one in zip(groups, (rate, 1e-2))
    )
    captured = Captured(model, ours)
    for step in range(12):
        rate_now = float(torch.tensor(1e-2 / (1 + step)))  # a float32 has it
        if step >= WARM_UP:
            rate.fill_(rate_now)
            captured.replay(step)
        theirs.param_groups[0]["lr"] = float(torch.tensor(1e-2)) if step < WARM_UP else rate_now
        iterate(other, theirs, batch(step))
    assert_same_bits(model, other)


def test_schedulers_write_the_tensor_of_the_learning_rate():
    model, optimizer, other, reference = twins(CAPTURABLE["adamw"], lr=1e-2)
    optimizer.param_groups[0]["lr"] = torch.tensor(1e-2, device="cuda")
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    rate = optimizer.param_groups[0]["lr"]
    captured = Captured(model, optimizer)
    for step in range(WARM_UP, 9):
        captured.replay(step)
        schedule.step()
    if optimizer.param_groups[0]["lr"] is not rate:
        pytest.skip("this torch replaces the tensor, which a graph does not see")
    for step in range(9):
        reference.param_groups[0]["lr"] = float(torch.tensor(1e-2)) * 0.5 ** (max(0, step - WARM_UP) // 2)
        iterate(other, reference, batch(step))
    assert_same_bits(model, other)


def scaled_iterate(scaler, unscales=False):
    def body(model, optimizer, x):
        optimizer.zero_grad()
        loss = model(x)
        scaler.scale(loss).backward()
        if unscales:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        return loss

    return body


def scaler_of():
    return torch.amp.GradScaler("cuda", init_scale=1024.0, growth_interval=4)


@pytest.mark.parametrize("unscales", [False, True])
@pytest.mark.parametrize("name", ["adamw", "lamb, clipped", "slamb", "one_bit_lamb"])
def test_a_grad_scaler_within_the_graph_scales_skips_and_grows(name, unscales):
    model, optimizer, other, reference = twins(CAPTURABLE[name], lr=1e-2, fused=True)
    scalers = scaler_of(), scaler_of()
    captured = Captured(model, optimizer, scaled_iterate(scalers[0], unscales))
    for step in range(14):
        x = batch(step)
        if step == 6:
            x[2] = float("inf")
        if step >= WARM_UP:
            captured.x.copy_(x)
            captured.graph.replay()
        scaled_iterate(scalers[1], unscales)(other, reference, x)
    assert_same_bits(model, other)
    assert scalers[0].get_scale() == scalers[1].get_scale() != 1024.0
    assert optimizer.statistics()["skipped_steps"] == reference.statistics()["skipped_steps"] == 1


def test_a_grad_scaler_outside_the_graph_calls_an_eager_step():
    model, optimizer, other, reference = twins(CAPTURABLE["lamb"], lr=1e-2)
    scalers = scaler_of(), scaler_of()

    def passes(model, optimizer, x):
        optimizer.zero_grad()
        loss = model(x)
        scalers[0].scale(loss).backward()
        return loss

    captured = Captured(model, optimizer, passes)
    for step in range(10):
        captured.replay(step)
        if step == 6:
            model.weights[1].grad[3] = float("inf")
        scalers[0].step(optimizer)
        scalers[0].update()
        reference.zero_grad()
        scalers[1].scale(other(batch(step))).backward()
        if step == 6:
            other.weights[1].grad[3] = float("inf")
        scalers[1].step(reference)
        scalers[1].update()
    assert_same_bits(model, other)
    assert optimizer.statistics()["step"] == 9


@pytest.mark.parametrize("name", ["adamw", "slamb", "one_bit_lamb"])
def test_graphed_callables_work_with_an_eager_step(name):
    model, optimizer, other, reference = twins(CAPTURABLE[name], lr=1e-2)
    graphed = torch.cuda.make_graphed_callables(model, (batch(0),))
    for step in range(10):
        optimizer.zero_grad()
        graphed(batch(step)).backward()
        optimizer.step()
        iterate(other, reference, batch(step))
    assert_same_bits(model, other)


@pytest.mark.parametrize("name", ["adamw", "lamb, int8", "slamb", "one_bit_lamb"])
def test_replays_keep_their_gradients_whatever_is_done_between_them(name):
    """Gradients become None, other calls look at the optimizer, steps are taken without a graph, and a second graph is captured."""
    model, optimizer, other, reference = twins(CAPTURABLE[name], lr=1e-2)
    first = Captured(model, optimizer)
    second = None
    taken = WARM_UP
    for step in range(WARM_UP):
        iterate(other, reference, batch(step))
    for turn in range(12):
        iterate(other, reference, batch(taken))
        if turn % 4 == 0:
            optimizer.zero_grad()  # to None
            optimizer.statistics()
            first.replay(taken)
        elif turn % 4 == 1:
            iterate(model, optimizer, batch(taken))
            assert float(optimizer.state[model.weights[0]]["step"]) == taken + 1
        elif turn % 4 == 2 and second is None:
            second = Captured(model, optimizer, first=taken)
            for step in range(taken + 1, taken + WARM_UP):
                iterate(other, reference, batch(step))
            taken += WARM_UP - 1
        else:
            optimizer.state_dict()
            (first if turn % 2 == 0 else second).replay(taken)
        taken += 1
    assert_same_bits(model, other)
    assert optimizer.statistics()["step"] == reference.statistics()["step"] == taken


def test_gradients_that_lie_otherwise_are_copied_within_the_graph():
    def body(model, optimizer, x):
        for i, p in enumerate(model.weights):
            p.grad = (p.detach() * x[i]).t().contiguous().t() if p.dim() == 2 else p.detach() * x[i]
        optimizer.step()

    model, optimizer, other, reference = twins(CAPTURABLE["adamw"], lr=1e-2)
    captured = Captured(model, optimizer, body)
    for step in range(10):
        if step >= WARM_UP:
            captured.replay(step)
        body(other, reference, batch(step))
    assert_same_bits(model, other)


def test_parameters_of_16_bits_that_were_written_count():
    """Before a capture they are noticed; between replays they are taken over by `reload_parameters`."""
    model, optimizer, other, reference = twins(CAPTURABLE["adamw"], torch.bfloat16, lr=1e-2)
    loaded = {key: value * 0.5 for key, value in model.state_dict().items()}
    for step in range(WARM_UP):
        iterate(model, optimizer, batch(step))
        iterate(other, reference, batch(step))
    optimizer.zero_grad()
    x = batch(0)
    graph = torch.cuda.CUDAGraph()
    model.load_state_dict(loaded)
    other.load_state_dict(loaded)
    with torch.cuda.graph(graph):
        iterate(model, optimizer, x)
    for step in range(WARM_UP, 9):
        if step == 6:
            for one, its in ((model, optimizer), (other, reference)):
                one.load_state_dict(loaded)
                its.reload_parameters()
        x.copy_(batch(step))
        graph.replay()
        iterate(other, reference, batch(step))
    assert_same_bits(model, other)


REFUSED = {
    "0/1 Adam": (lambda p: slamb.torch.ZeroOneAdam(p), "the schedules of 0/1 Adam follow"),
    "averages": (lambda p: slamb.torch.Slamb(p), "local_steps=0"),
    "warm-up": (lambda p: slamb.torch.OneBitLamb(p, warm_up_steps=50), "the warm-up may end in this step"),
    "warm-up of 1-bit Adam": (lambda p: slamb.torch.OneBitAdam(p, warm_up_steps=50), "the warm-up may end in this step"),
}


@contextlib.contextmanager
def refusing(reason):
    """A capture within which a RuntimeError with this reason is raised. Its graph is not used."""
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros(1, device="cuda")  # PyTorch warns of an empty graph
        with pytest.raises(RuntimeError, match=reason):
            yield


@pytest.mark.parametrize("name", REFUSED)
def test_a_step_that_cannot_be_captured_says_why_and_changes_nothing(name):
    make, reason = REFUSED[name]
    model, optimizer, other, reference = twins(lambda p, **_: make(p))
    for step in range(8):
        if step == WARM_UP:
            optimizer.zero_grad()
            model(batch(step)).backward()
            before = bits_of(model)
            with refusing(reason):
                optimizer.step()
            assert all(torch.equal(a, b) for a, b in zip(bits_of(model), before))
            assert optimizer.statistics()["step"] == WARM_UP
        iterate(model, optimizer, batch(step))
        iterate(other, reference, batch(step))
    assert_same_bits(model, other)


def test_a_first_step_and_other_calls_cannot_be_captured():
    model = Model()
    optimizer = slamb.torch.AdamW(model.parameters())
    model(batch(0)).backward()
    with refusing("some parameters have not taken a step yet"):
        optimizer.step()
    optimizer.step()
    with refusing(r"statistics\(\) cannot be captured"):
        optimizer.statistics()
    with refusing(r"state_dict\(\) cannot be captured"):
        optimizer.state_dict()
    assert optimizer.statistics()["step"] == 1


def test_a_graph_continues_after_a_state_was_loaded_into_the_same_optimizer():
    """The moments stay where they are; the guide asks for another capture, because of what a step finds out on the host."""
    model, optimizer, other, reference = twins(CAPTURABLE["adamw"], lr=1e-2)
    captured = Captured(model, optimizer)
    for step in range(WARM_UP):
        iterate(other, reference, batch(step))
    saved = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model.state_dict())
    captured.replay(20)
    optimizer.load_state_dict(saved[0])
    model.load_state_dict(saved[1])
    iterate(model, optimizer, batch(WARM_UP))
    iterate(other, reference, batch(WARM_UP))
    again = Captured(model, optimizer, first=WARM_UP + 1)
    for step in range(WARM_UP + 1, 12):
        iterate(other, reference, batch(step))
        if step >= 2 * WARM_UP + 1:
            again.replay(step)
    assert_same_bits(model, other)
