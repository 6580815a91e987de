"""Optimizers that exchange gradients, momenta and parameters between ranks, without DistributedDataParallel."""

import copy
import datetime
import gc

import torch
import torch.distributed as dist

from checks import (  # fmt: skip
    noise,
    SHAPES,
    are_equal_on_all_ranks,
    bits,
    check,
    copies,
    distance,
    gather,
    give,
    gradients,
    make_parameters,
    mean_gradients,
    raises,
    rank,
    require_near,
    require_same_bits,
    run,
    size,
    train,
)
from optimizers import COMPRESSORS, OPTIMIZERS, make
from slamb.torch import _ranks, AdamW, Lamb, OneBitAdam, OneBitLamb, Slamb, ZeroOneAdam

COUNT = sum(torch.Size(shape).numel() for shape in SHAPES)

# ---------------------------------------------------------------------------------------------------- Means of gradients


@check((2, 4))
def adamw_is_that_of_torch_on_the_mean_gradient():
    ours, theirs = make_parameters(), make_parameters()
    groups = [{"weight_decay": 0.1, "lr": 2e-3}, {"weight_decay": 0.0}]
    optimizers = [
        kind([{"params": of[:1], **groups[0]}, {"params": of[1:], **groups[1]}], lr=5e-3, betas=(0.8, 0.95), eps=1e-6)
        for kind, of in ((AdamW, ours), (torch.optim.AdamW, theirs))
    ]
    schedules = [torch.optim.lr_scheduler.ExponentialLR(one, 0.97) for one in optimizers]
    start = copies(theirs)
    for step in range(30):
        give(ours, gradients(step, rank()))
        give(theirs, mean_gradients(step, range(size())))
        for one in optimizers + schedules:
            one.step()
    require_near(ours, theirs, 1e-6)
    assert distance(theirs, start) > 0.5  # they have moved
    assert are_equal_on_all_ranks(ours)


@check(2)
def adamw_without_an_exchange_is_not_that_of_torch_on_the_mean_gradient():
    ours, theirs = make_parameters(), make_parameters()
    local, mean = AdamW(ours, exchange=False), torch.optim.AdamW(theirs)
    for step in range(3):
        give(ours, gradients(step, rank()))
        give(theirs, mean_gradients(step, range(size())))
        local.step()
        mean.step()
    with raises(AssertionError, "of the largest element"):
        require_near(ours, theirs, 1e-6)
    assert not are_equal_on_all_ranks(ours)


@check(2)
def groups_that_are_added_later_begin_then():
    ours, theirs = make_parameters(), make_parameters()
    first, second = AdamW(ours[:2], lr=1e-2), torch.optim.AdamW(theirs[:2], lr=1e-2)
    for step in range(8):
        if step == 3:
            first.add_param_group({"params": ours[2:], "lr": 2e-2})
            second.add_param_group({"params": theirs[2:], "lr": 2e-2})
        give(ours, gradients(step, rank()))
        give(theirs, mean_gradients(step, range(size())))
        first.step()
        second.step()
    require_near(ours, theirs, 1e-6)


@check(2)
def a_closure_is_called_once_and_its_loss_returned():
    parameters, calls = make_parameters(), []
    optimizer = AdamW(parameters)

    def closure():
        calls.append(torch.is_grad_enabled())
        give(parameters, gradients(len(calls), rank()))
        return torch.tensor(3.5)

    with torch.no_grad():
        assert optimizer.step(closure) == 3.5
    assert calls == [True]
    assert optimizer.statistics()["step"] == 1


@check(2)
def gradients_are_clipped_by_the_norm_of_their_mean():
    ours, theirs = make_parameters(), make_parameters()
    first, second = AdamW(ours, lr=1e-2, eps=1.0, max_gradient_norm=0.7), torch.optim.AdamW(theirs, lr=1e-2, eps=1.0)
    for step in range(5):
        give(ours, gradients(step, rank()))
        give(theirs, mean_gradients(step, range(size())))
        norm = float(torch.nn.utils.clip_grad_norm_(theirs, 0.7))
        first.step()
        second.step()
        assert norm > 0.7
        assert abs(first.statistics()["gradient_norm"] / norm - 1) < 1e-5
    require_near(ours, theirs, 1e-5)


@check(2)
def parameters_of_sixteen_bits_follow_the_mean_of_their_gradients():
    ours, theirs = make_parameters(dtype=torch.bfloat16), make_parameters(dtype=torch.bfloat16)
    masters = [torch.nn.Parameter(p.detach().float()) for p in theirs]
    first, second = AdamW(ours, lr=1e-2), torch.optim.AdamW(masters, lr=1e-2)
    for step in range(10):
        of_ranks = [[g.bfloat16() for g in gradients(step, one)] for one in range(size())]
        give(ours, of_ranks[rank()])
        give(masters, [sum(g.float() for g in of_one) / size() for of_one in zip(*of_ranks)])
        first.step()
        second.step()
    for p, m in zip(ours, masters):
        assert float((p.detach().float() - m.detach()).abs().max()) <= 2**-8 * float(m.detach().abs().max())
    assert are_equal_on_all_ranks(ours)


# --------------------------------------------------------------------------------------------------------- Compressors


def adamw_path(steps, **settings):
    """AdamW with a large ε: its steps are proportional to the momentum, and errors that a compressor makes up for cancel."""
    parameters = make_parameters()
    start = copies(parameters)
    optimizer = AdamW(parameters, lr=10.0, eps=1e3, weight_decay=0.0, **settings)
    train(optimizer, parameters, range(steps))
    return optimizer, parameters, start


@check((2, 4), each=COMPRESSORS)
def with_a_compressor_adamw_stays_near_that_without(name):
    steps = 40
    _, dense, start = adamw_path(steps)
    optimizer, compressed, _ = adamw_path(steps, **COMPRESSORS[name].settings)
    off = distance(compressed, dense) / distance(dense, start)
    assert off <= COMPRESSORS[name].distance, f"{off:.4f} of the way of dense AdamW"
    assert name == "none" or off > 0.0
    assert are_equal_on_all_ranks(compressed)
    optimizer.compare_ranks()
    dense_bytes = 8 * COUNT * (size() - 1) // size() * steps
    sent = optimizer.statistics()["sent_bytes"]
    assert sent <= COMPRESSORS[name].bytes * dense_bytes, f"{sent / dense_bytes:.4f} of the bytes of dense AdamW"


@check((2, 4))
def without_an_exchange_adamw_does_not_stay_near():
    _, dense, start = adamw_path(40)
    _, local, _ = adamw_path(40, exchange=False)
    off = distance(local, dense) / distance(dense, start)
    assert off > 2 * max(one.distance for one in COMPRESSORS.values()), f"{off:.4f} of the way of dense AdamW"


def sent_in_each_step(steps=3, shapes=((64, 64),), **settings):
    parameters = make_parameters(shapes)
    optimizer = AdamW(parameters, **settings)
    assert optimizer.statistics()["sent_bytes"] == 0
    train(optimizer, parameters, range(steps))
    found = optimizer.statistics()
    assert found["sent_bytes"] % steps == 0 and found["collectives"] % steps == 0
    return found["sent_bytes"] // steps, found["collectives"] // steps


@check((2, 4))
def bytes_are_those_counted_by_hand():
    n, d = size(), 64 * 64
    # A ring sends (N − 1)/N of the payload, twice for a sum.
    assert sent_in_each_step() == (2 * 4 * d * (n - 1) // n, 1)
    assert sent_in_each_step(compressor="random_k", k=0.25) == (2 * 4 * d // 4 * (n - 1) // n, 1)
    # Quantizers send a message to each other rank, and each rank's mean to all. A message has scales, in units of 16 bytes, the
    # codes of a chunk of d/N elements, and 8 bytes by which ranks compare themselves, together in units of 128 bytes.
    chunk = d // n

    def message(scales, bits):
        return -(-(-(-4 * scales // 16) * 16 + chunk * bits // 8 + 8) // 128) * 128

    assert sent_in_each_step(compressor="int8") == (2 * (n - 1) * message(chunk // 128, 8), 2)
    assert sent_in_each_step(compressor="int4", quantizer_block=16) == (2 * (n - 1) * message(chunk // 16, 4), 2)
    assert sent_in_each_step(compressor="sign", scales="fused") == (2 * (n - 1) * message(1, 1), 2)
    assert sent_in_each_step(compressor="bf16") == (2 * (n - 1) * message(1, 16), 2)
    # A tensor with compress=False is sent dense.
    parameters = make_parameters(((64, 64), (64,)))
    optimizer = AdamW([{"params": parameters[:1]}, {"params": parameters[1:], "compress": False}], compressor="bf16")
    train(optimizer, parameters, range(1))
    assert optimizer.statistics()["sent_bytes"] == 2 * (n - 1) * message(1, 16) + 2 * 4 * 64 * (n - 1) // n


@check((2, 4))
def bytes_of_phases_are_those_counted_by_hand():
    n, d = size(), 64 * 64
    dense, compressed = 2 * 4 * d * (n - 1) // n, 2 * (n - 1) * (-(-(16 + d // n // 8 + 8) // 128) * 128)
    parameters = make_parameters(((64, 64),))
    optimizer = OneBitAdam(parameters, warm_up_steps=3)
    train(optimizer, parameters, range(10))
    found = optimizer.statistics()
    assert (found["phase"], found["warm_up_ended_after"], found["step"]) == ("compressed", 3, 10)
    assert found["phases"]["warm-up"]["sent_bytes"] == 3 * dense
    assert found["phases"]["compressed"]["sent_bytes"] == 7 * compressed
    assert found["phases"]["compressed"]["first_step"] == 4
    assert found["sent_bytes"] == 3 * dense + 7 * compressed
    # SLAMB sends a part k of the momentum, and all parameters at each average.
    parameters = make_parameters(((64, 64),))
    optimizer = Slamb(parameters, k=0.25, local_steps=5, dense_below=0)
    train(optimizer, parameters, range(10))
    assert optimizer.statistics()["sent_bytes"] == 10 * dense // 4 + 2 * dense


# -------------------------------------------------------------------------------------------------- Parameters of ranks


@check(2)
def the_first_step_names_parameters_that_differ():
    for name in OPTIMIZERS:
        parameters = make_parameters()
        with torch.no_grad():
            parameters[1][7] += rank() * 2**-20
        optimizer = make(name, parameters)
        before = copies(parameters)
        give(parameters, gradients(0, rank()))
        with raises(RuntimeError, "the parameters of tensor 1", "rank 0 and rank 1", "broadcast_parameters()"):
            optimizer.step()
        require_same_bits(parameters, before)
        optimizer.broadcast_parameters()
        optimizer.step()
        assert optimizer.statistics()["step"] == 1


@check((2, 4), each=("float32", "bfloat16"))
def broadcast_gives_all_the_parameters_of_the_root(name):
    root, dtype = size() - 1, getattr(torch, name)
    parameters = make_parameters(seed=rank(), dtype=dtype)
    optimizer = AdamW(parameters, lr=1e-2)
    optimizer.broadcast_parameters(root=root)
    require_same_bits(parameters, make_parameters(seed=root, dtype=dtype))
    train(optimizer, parameters, range(3))
    assert are_equal_on_all_ranks(parameters)
    # The same as ranks that have begun so.
    others = make_parameters(seed=root, dtype=dtype)
    train(AdamW(others, lr=1e-2), others, range(3))
    require_same_bits(parameters, others)


@check(2)
def broadcast_works_between_steps_too():
    parameters = make_parameters()
    optimizer = AdamW(parameters)
    train(optimizer, parameters, range(2))
    with torch.no_grad():
        parameters[0] += rank()
    expected = gather(copies(parameters))[0]
    optimizer.broadcast_parameters()
    require_same_bits(parameters, expected)
    train(optimizer, parameters, range(2, 4))
    assert optimizer.statistics()["step"] == 4


@check(2)
def ranks_that_name_other_roots_are_told():
    optimizer = AdamW(make_parameters(seed=rank()))
    with raises(RuntimeError, "broadcast_parameters()", "0 on rank 0, 1 on rank 1", "the same rank"):
        optimizer.broadcast_parameters(root=rank())


def between_exchanges(name, **settings):
    """An optimizer whose ranks have parameters of their own, as between averages or exchanges."""
    parameters = make_parameters(**settings)
    optimizer = make(name, parameters)
    train(optimizer, parameters, range(12))
    assert not are_equal_on_all_ranks(parameters)
    return optimizer, parameters


def mean_of_all_ranks(parameters):
    everything = gather([p.detach().double() for p in parameters])
    return [sum(of_one) / size() for of_one in zip(*everything)]


def distance_of_ranks(**settings):
    """How far the parameters of this rank are from the mean of all, after some steps."""
    parameters = make_parameters()
    optimizer = Slamb(parameters, lr=0.02, compressor="random_k+int8", k=0.25, dense_below=0, **settings)
    train(optimizer, parameters, range(15))
    away = distance([p.detach().double() for p in parameters], mean_of_all_ranks(parameters))
    optimizer.synchronize_parameters()
    assert are_equal_on_all_ranks(parameters)
    return away


SYNCS = {
    "four_levels": {"parameter_sync": "four_levels"},
    "four_levels_rescaled": {"parameter_sync": "four_levels", "trust_ratio": "rescaled"},
    "int4": {"parameter_sync": "int4"},
    "sign": {"parameter_sync": "sign"},
}


@check((2, 4), each=SYNCS)
def differences_keep_the_ranks_together(name):
    settings = SYNCS[name]
    together, alone = distance_of_ranks(**settings), distance_of_ranks(**settings, local_steps=0)
    part = 0.8 if name == "sign" else 0.5  # signs send the differences of these steps, which are long, later
    assert together < part * alone, f"{together} of {alone}"


@check((2, 4), each=("slamb", "zero_one_adam"))
def synchronize_makes_parameters_their_mean(name):
    optimizer, parameters = between_exchanges(name)
    expected = mean_of_all_ranks(parameters)
    optimizer.synchronize_parameters()
    assert are_equal_on_all_ranks(parameters)
    require_near(parameters, expected, 1e-6)
    train(optimizer, parameters, range(12, 15))
    optimizer.compare_ranks()
    assert optimizer.statistics()["step"] == 15


@check(2, each=("adamw", "lamb", "one_bit_adam", "one_bit_lamb", "adamw+int8"))
def synchronize_leaves_parameters_that_are_equal(name):
    parameters = make_parameters()
    optimizer = make(name, parameters)
    train(optimizer, parameters, range(12))
    before = copies(parameters)
    optimizer.synchronize_parameters()
    require_same_bits(parameters, before)


@check((2, 4), each=("slamb", "zero_one_adam"))
def an_evaluation_sees_the_mean_and_leaves_the_ranks_their_own(name):
    optimizer, parameters = between_exchanges(name)
    expected, own, seen = mean_of_all_ranks(parameters), copies(parameters), []

    def evaluate():
        seen.extend(copies(parameters))
        return {"loss": 0.25}

    assert optimizer.with_averaged_parameters(evaluate) == {"loss": 0.25}
    require_near(seen, expected, 1e-6)
    assert are_equal_on_all_ranks(seen)
    require_same_bits(parameters, own)
    # The training goes on as if nothing had happened.
    train(optimizer, parameters, range(12, 20))
    undisturbed, others = between_exchanges(name)
    train(undisturbed, others, range(12, 20))
    require_same_bits(parameters, others)


@check(2, each=("slamb", "zero_one_adam"))
def an_evaluation_of_sixteen_bits_sees_the_mean(name):
    optimizer, parameters = between_exchanges(name, dtype=torch.bfloat16)
    expected, own, seen = mean_of_all_ranks(parameters), copies(parameters), []
    optimizer.with_averaged_parameters(lambda: seen.extend(copies(parameters)))
    require_near(seen, expected, 2**-7)
    assert are_equal_on_all_ranks(seen)
    require_same_bits(parameters, own)


@check(2)
def an_evaluation_that_fails_leaves_the_ranks_their_own():
    optimizer, parameters = between_exchanges("slamb")
    own = copies(parameters)

    def evaluate():
        raise ZeroDivisionError("of the evaluation")

    with raises(ZeroDivisionError, "of the evaluation"):
        optimizer.with_averaged_parameters(evaluate)
    require_same_bits(parameters, own)
    train(optimizer, parameters, range(12, 15))
    assert optimizer.statistics()["step"] == 15


@check(2)
def compare_ranks_finds_a_parameter_that_differs():
    for name in ("adamw", "lamb", "one_bit_adam", "one_bit_lamb"):
        parameters = make_parameters()
        optimizer = make(name, parameters)
        train(optimizer, parameters, range(6))
        optimizer.compare_ranks()
        with torch.no_grad():
            parameters[2][1, 1, 1] += rank() * 2**-10
        with raises(RuntimeError, "the parameters of tensor 2", "rank 0 and rank 1"):
            optimizer.compare_ranks()


@check(2, each=("slamb", "zero_one_adam"))
def compare_ranks_accepts_parameters_that_may_differ(name):
    optimizer, parameters = between_exchanges(name)
    own = copies(parameters)
    optimizer.compare_ranks()
    require_same_bits(parameters, own)


@check(2)
def steps_compare_parameters_at_the_interval_that_is_given():
    parameters = make_parameters()
    optimizer = AdamW(parameters, compare_every=4)
    train(optimizer, parameters, range(1))
    with torch.no_grad():
        parameters[0][0, 0] += rank()
    train(optimizer, parameters, range(1, 3))  # are not compared
    with raises(RuntimeError, "the parameters of tensor 0"):
        train(optimizer, parameters, range(3, 6))


@check(2)
def statistics_count_what_has_happened():
    parameters = make_parameters()
    optimizer = make("zero_one_adam", parameters)
    train(optimizer, parameters, range(9))
    found = optimizer.statistics(with_norms=True)
    assert (found["step"], found["skipped_steps"], found["phase"]) == (9, 0, "local steps")
    assert 0 < found["sent_bytes"] == sum(one["sent_bytes"] for one in found["phases"].values())
    assert 0 < found["collectives"] == sum(one["collectives"] for one in found["phases"].values())
    length = sum(float((p.detach().double() ** 2).sum()) for p in parameters) ** 0.5
    assert abs(found["parameter_norm"] / length - 1) < 1e-6
    assert found["worker_error_norms"][0] > 0.0
    assert set(found) - set(optimizer.statistics()) == {
        "parameter_norm",
        "momentum_norm",
        "variance_norm",
        "bounded_elements",
        "late_elements",
        "worker_error_norms",
        "parameter_drift",
    }


@check(2)
def parameters_that_an_evaluation_moves_are_restored():
    model = torch.nn.Linear(300, 200)
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.copy_(noise(p.shape, 50, i))
    optimizer = Slamb(model.parameters(), lr=0.1, local_steps=0)
    train(optimizer, list(model.parameters()), range(3))
    before = copies(model.parameters())

    def evaluate():
        model.double()
        model.float()
        return [torch.zeros(1) for _ in range(100)]

    optimizer.with_averaged_parameters(evaluate)
    require_same_bits(list(model.parameters()), before)
    train(optimizer, list(model.parameters()), range(3, 4))


# ----------------------------------------------------------------------------------------------------- The bound of updates

ROWS, WIDTH, FREQUENT, RARE = 2000, 16, 1000, 1500  # tokens 0 … 999 are frequent, and token 1500 comes once


def embedding_gradient(step, with_rare_token):
    """Of this rank's batch of 256 frequent tokens, and at step 40 on rank 1 the rare one."""
    tokens = torch.randint(0, FREQUENT, (256,), generator=torch.Generator().manual_seed(1000 * rank() + step))
    gradient = torch.zeros(ROWS, WIDTH).index_add_(0, tokens, noise((256, WIDTH), 20, rank(), step) / 256)
    if with_rare_token and step == 40 and rank() == 1:
        gradient[RARE] = noise((WIDTH,), 21) / 256
    return gradient


def embedding_path(with_rare_token, **settings):
    """The mean step of a frequent row in each step from 41 to 50; the embedding, and its statistics."""
    embedding = torch.nn.Parameter(0.02 * noise((ROWS, WIDTH), 22))
    optimizer = Slamb([embedding], lr=1e-2, **settings)
    moves = []
    for step in range(1, 51):
        before = embedding.detach().double()
        embedding.grad = embedding_gradient(step, with_rare_token)
        optimizer.step()
        moves.append(float((embedding.detach().double() - before)[:FREQUENT].norm(dim=1).mean()))
    return torch.tensor(moves[40:]), embedding, optimizer.statistics(with_norms=True)


@check(2, each=("random_k", "random_k+int8", "differences"))
def a_token_of_another_rank_does_not_stop_the_other_rows(name):
    """Rank 0 receives its momentum, and has no variance for it. The trust ratio divides the steps of all rows by its update."""
    settings = {"compressor": "random_k+int8", "parameter_sync": "four_levels"} if name == "differences" else {"compressor": name}
    with_token, _, counts = embedding_path(True, **settings)
    without, _, counts_without = embedding_path(False, **settings)
    part = with_token / without
    assert 0.7 < part.min() and part.max() < 1.3, f"steps are these parts of those without the token: {part}"
    assert rank() != 0 or counts["bounded_elements"] > counts_without["bounded_elements"]
    assert counts["late_elements"] == 0  # every variance goes on


@check(2, each=("random_k", "differences"))
def without_a_bound_a_token_of_another_rank_stops_the_other_rows(name):
    settings = {"update_bound": None, **({"parameter_sync": "four_levels"} if name == "differences" else {})}
    with_token, embedding, _ = embedding_path(True, **settings)
    without, _, _ = embedding_path(False, **settings)
    _, other, _ = embedding_path(True, **{**settings, "update_bound": 1e30})
    require_same_bits([other], [embedding])
    part = with_token / without
    assert rank() != 0 or part.min() < 0.1, f"steps are these parts of those without the token: {part}"


# -------------------------------------------------------------------------------------------------------------- Failures

# Settings of all ranks, of rank 1, and the words that the error must have.
DIFFERENCES = {
    "betas": (AdamW, {}, {"betas": (0.8, 0.999)}, ["beta1", "0.9 on rank 0", "0.8 on rank 1"]),
    "eps": (AdamW, {}, {"eps": 1e-5}, ["epsilon", "1e-05 on rank 1"]),
    "weight_decay": (AdamW, {}, {"weight_decay": 0.5}, ["weight decay", "0.01 on rank 0", "0.5 on rank 1"]),
    "max_gradient_norm": (AdamW, {}, {"max_gradient_norm": 7.0}, ["max_gradient_norm", "7 on rank 1"]),
    "bias_correction": (AdamW, {}, {"bias_correction": False}, ["bias_correction"]),
    "skip_non_finite": (AdamW, {}, {"skip_non_finite": False}, ["skip_non_finite"]),
    "compare_every": (AdamW, {}, {"compare_every": 7}, ["compare_every", "100 on rank 0", "7 on rank 1"]),
    "rounding": (AdamW, {}, {"rounding": "stochastic"}, ["rounding", "'stochastic' on rank 1"]),
    "rounding_seed": (AdamW, {}, {"rounding_seed": 7}, ["seed", "rounding"]),
    "check_gradients": (AdamW, {}, {"check_gradients": False}, ["check_gradients"]),
    "moments": (AdamW, {}, {"moments": "8-bit"}, ["moments"]),
    "compressor": (AdamW, {"compressor": "int8"}, {"compressor": "sign"}, ["the optimizer or its policies"]),
    "k": (AdamW, {"compressor": "random_k"}, {"k": 0.2}, ["random_k", "k: 0.1 on rank 0, 0.2 on rank 1"]),
    "seed": (AdamW, {"compressor": "random_k"}, {"seed": 3}, ["random_k", "seed: 0 on rank 0, 3 on rank 1"]),
    "quantizer_block": (AdamW, {"compressor": "int8"}, {"quantizer_block": 64}, ["block: 128 on rank 0, 64 on rank 1"]),
    "trust_ratio_upper": (Lamb, {}, {"trust_ratio_upper": 3.0}, ["upper", "3 on rank 1"]),
    "beta3": (Slamb, {}, {"beta3": 0.5}, ["beta3: 0.93 on rank 0, 0.5 on rank 1"]),
    "local_steps": (Slamb, {}, {"local_steps": 7}, ["local_steps: 100 on rank 0, 7 on rank 1"]),
    "update_bound": (Slamb, {}, {"update_bound": 3.0}, ["update_bound: 0 on rank 0, 3 on rank 1"]),
    "update_bound_off": (OneBitAdam, {}, {"update_bound": None}, ["update_bound: 0 on rank 0, inf on rank 1"]),
    "dense_below": (Slamb, {}, {"dense_below": 7}, ["dense_below: 9000 on rank 0, 7 on rank 1"]),
    "warm_up_steps": (OneBitAdam, {}, {"warm_up_steps": 7}, ["warm_up", "1000 on rank 0", "7 on rank 1"]),
    "zero_aware": (OneBitLamb, {}, {"zero_aware": False}, ["zero_aware"]),
    "scales": (OneBitAdam, {}, {"scales": "per_tensor"}, ["scales"]),
    "variance_freeze_step": (ZeroOneAdam, {}, {"variance_freeze_step": 7}, ["freeze_step", "7 on rank 1"]),
    "local_interval_clipper": (ZeroOneAdam, {}, {"local_interval_clipper": 7}, ["clipper", "7 on rank 1"]),
}


@check(2, each=DIFFERENCES)
def ranks_with_other_settings_are_told(name):
    kind, common, of_rank_1, words = DIFFERENCES[name]
    parameters = make_parameters()
    settings = {**common, **(of_rank_1 if rank() == 1 else {})}
    # A short timeout, for settings that change the collectives.
    group = dist.new_group(timeout=datetime.timedelta(seconds=5))
    before = copies(parameters)
    with raises(RuntimeError, "slamb: ranks differ in", *words):
        optimizer = kind(parameters, process_group=group, **settings)
        train(optimizer, parameters, range(1))
    require_same_bits(parameters, before)


@check(2)
def ranks_with_other_optimizers_or_parameters_are_told():
    parameters = make_parameters()
    with raises(RuntimeError, "ranks differ in the optimizer"):
        (AdamW, Lamb)[rank()](parameters)
    with raises(RuntimeError, "the number of tensors: 4 on rank 0, 3 on rank 1"):
        AdamW(parameters[: 4 - rank()])
    with raises(RuntimeError, "the size of tensor 1: 30 on rank 0, 31 on rank 1"):
        AdamW(make_parameters(((4, 3), (30 + rank(),))))
    with raises(RuntimeError, "of tensor 0: 4 on rank 0, 2 on rank 1"):
        AdamW(make_parameters(dtype=(torch.float32, torch.bfloat16)[rank()]))
    with raises(RuntimeError, "the size of tensor 0: 1200 on rank 0, 1 on rank 1"):
        AdamW(parameters[:: 1 - 2 * rank()])
    AdamW(parameters)  # the process group still works


@check(2, each=("lr", "weight_decay", "betas"))
def ranks_that_differ_in_a_later_step_are_told(name):
    parameters = make_parameters()
    optimizer = AdamW(parameters, lr=1e-3, compare_every=2)
    train(optimizer, parameters, range(3))
    before = copies(parameters)
    key, value, words = {
        "lr": ("lr", 2e-3, ["the learning rate of group 0: 0.001 on rank 0, 0.002 on rank 1"]),
        "weight_decay": ("weight_decay", 0.5, ["the weight decay of tensor 0: 0.01 on rank 0, 0.5 on rank 1"]),
        "betas": ("betas", (0.9, 0.9), ["differ in beta2: 0.999 on rank 0, 0.9 on rank 1"]),
    }[name]
    known = optimizer.param_groups[0][key]
    if rank() == 1:
        optimizer.param_groups[0][key] = value
    with raises(RuntimeError, *words):
        train(optimizer, parameters, range(3, 4))
    require_same_bits(parameters, before)
    optimizer.param_groups[0][key] = known
    train(optimizer, parameters, range(3, 4))
    assert optimizer.statistics()["step"] == 4


@check(2, each=OPTIMIZERS)
def a_gradient_that_is_not_finite_skips_the_step_on_all_ranks(name):
    parameters, others = make_parameters(), make_parameters()
    optimizer, undisturbed = make(name, parameters), make(name, others)
    for step in range(10):
        if step in (2, 6):  # in each phase
            before = copies(parameters)
            values = gradients(100, rank())
            if rank() == 1:
                values[step % 4].view(-1)[0] = float("nan" if step == 2 else "inf")
            give(parameters, values)
            optimizer.step()
            require_same_bits(parameters, before)
        train(optimizer, parameters, range(step, step + 1))
        train(undisturbed, others, range(step, step + 1))
    found = optimizer.statistics()
    assert (found["step"], found["skipped_steps"] + found["local_skips"]) == (10, 2), found
    require_same_bits(parameters, others)


@check(2, each=map(str, range(len(SHAPES))))
def a_gradient_that_one_rank_does_not_have_is_named(which):
    for name in OPTIMIZERS:
        for first_missing in (0, 2):
            parameters = make_parameters()
            optimizer = make(name, parameters)
            train(optimizer, parameters, range(first_missing))
            before = copies(parameters)
            give(parameters, gradients(first_missing, rank()))
            if rank() == 1:
                parameters[int(which)].grad = None
            with raises(RuntimeError, f"gradients of tensor {which}: 1 on rank 0, 0 on rank 1"):
                optimizer.step()
            require_same_bits(parameters, before)
            train(optimizer, parameters, range(first_missing, first_missing + 2))


@check(2)
def gradients_that_no_rank_has_leave_their_parameters():
    for name in OPTIMIZERS:
        parameters = make_parameters()
        optimizer = make(name, parameters)
        start = copies(parameters)
        for step in range(6):
            give(parameters, gradients(step, rank()))
            parameters[1].grad = None
            optimizer.step()
        require_same_bits(parameters[1:2], start[1:2])
        assert distance(parameters[:1], start[:1]) > 0.0


class Failure:
    """Replaces collectives of an optimizer by one that raises at its call number `at`."""

    def __init__(self, ranks, at):
        self.ranks, self.left, self.has_failed = ranks, at, False
        for name in ("all_reduce_sum", "all_gather", "all_to_all", "broadcast"):
            setattr(ranks, name, self.around(getattr(ranks, name)))

    def around(self, call):
        def called(*arguments):
            self.left -= 1
            if self.left == 0:
                self.has_failed = True
                raise ZeroDivisionError("of the collective")
            call(*arguments)

        return called

    def remove(self):
        for name in ("all_reduce_sum", "all_gather", "all_to_all", "broadcast"):
            delattr(self.ranks, name)


@check(2, each=OPTIMIZERS)
def an_exception_of_a_collective_arrives_and_the_step_can_be_taken_again(name):
    phases = set()
    for first in (0, 2, 5, 7, 8):  # the step in which it occurs; the first also compares ranks
        for at in range(1, 9):
            parameters, others = make_parameters(), make_parameters()
            optimizer, undisturbed = make(name, parameters), make(name, others)
            train(optimizer, parameters, range(first))
            before = copies(parameters)
            give(parameters, gradients(first, rank()))
            optimizer._parts[0]._must_compare_gradients = False  # by the same class, but not in the compiled optimizer
            failure = Failure(optimizer._ranks, at)
            try:
                optimizer.step()
            except ZeroDivisionError as error:
                assert str(error) == "of the collective"
            failure.remove()
            if not failure.has_failed:
                break
            if optimizer.statistics()["step"] > first:  # the exchange of SLAMB's parameters has failed, which comes after the step
                assert (name, first) in {("slamb", 0), ("slamb", 5), *(("slamb_by_differences", even) for even in (0, 2, 8))}
                train(optimizer, parameters, range(first + 1, 10))
                optimizer.compare_ranks()
                continue
            require_same_bits(parameters, before)
            phases.add(optimizer.statistics()["phase"])
            train(optimizer, parameters, range(first, 10))
            train(undisturbed, others, range(10))
            require_same_bits(parameters, others)
            optimizer.compare_ranks()
    assert phases == set(optimizer.statistics()["phases"]), phases


# A thread of Gloo may be the last that holds a collective and its tensors, which Python knows. It takes the interpreter's lock to
# release them, and if the interpreter ends meanwhile, the process is aborted: "terminate called without an active exception".
@check(2)
def collectives_are_kept_after_their_end():
    ranks = AdamW(make_parameters(((3,),)))._ranks
    given = []

    def noted(name, call):
        def instead(*arguments, **keywords):
            assert keywords.get("async_op"), f"{name} keeps its work to itself"
            given.append(call(*arguments, **keywords))
            return given[-1]

        return instead

    names = ("all_reduce", "all_gather", "all_to_all_single", "broadcast", "gather")
    real = {name: getattr(dist, name) for name in names}
    some, all_of_some = memoryview(bytearray(64)), memoryview(bytearray(128))
    try:
        for name, call in real.items():
            setattr(dist, name, noted(name, call))
        for name, arguments in [
            ("all_reduce_sum", [some]),
            ("broadcast", [some, 0]),
            ("all_gather", [some, all_of_some]),
            ("all_to_all", [all_of_some, all_of_some]),
            ("gather_values", ["x" * (1 + rank())]),
            ("gather_words", [3]),
            ("gather_bytes", [torch.zeros(5 + rank(), dtype=torch.uint8), 0]),
        ]:
            given.clear()
            getattr(ranks, name)(*arguments)
            assert given and all(any(work is kept for kept in _ranks._last) for work in given), name
    finally:
        for name, call in real.items():
            setattr(dist, name, call)


@check(2)
def a_destroyed_group_is_named():
    group = dist.new_group()
    parameters = make_parameters()
    optimizer = AdamW(parameters, process_group=group)
    train(optimizer, parameters, range(1))
    dist.destroy_process_group(group)
    del group
    gc.collect()
    before = copies(parameters)
    give(parameters, gradients(1, rank()))
    with raises(RuntimeError, "the process group has been destroyed; call torch.distributed.destroy_process_group() after"):
        optimizer.step()
    require_same_bits(parameters, before)
    # Not a copy over the default group, whose ranks may train another model.
    with raises(RuntimeError, "the process group has been destroyed; copy the optimizer before"):
        copy.deepcopy(optimizer)


@check(2)
def a_step_that_fails_leaves_older_graphs_valid():
    parameters = make_parameters()
    optimizer = AdamW(parameters, lr=0.1)
    loss = sum(p.square().sum() for p in parameters) * (rank() + 1)
    loss.backward(retain_graph=True)
    optimizer.param_groups[0]["lr"] = 0.1 * (rank() + 1)
    with raises(RuntimeError, "the learning rate of group 0"):
        optimizer.step()
    loss.backward()


@check(2)
def the_memory_of_gathered_states_is_released():
    ranks = AdamW(make_parameters(((3,),)))._ranks
    states = ranks.gather_bytes(torch.full((1 << 20,), 1 + rank(), dtype=torch.uint8), 0)
    held = [t for t in gc.get_objects() if isinstance(t, torch.Tensor) and t.numel() >= 1 << 20]
    assert len(held) == (2 if rank() == 0 else 0), held  # the result
    if rank() == 0:
        assert [int(one[-1]) for one in states] == [1, 2]


@check(2)
def an_exception_of_gloo_arrives_at_the_rank_that_waits():
    group = dist.new_group(timeout=datetime.timedelta(seconds=2))
    parameters = make_parameters()
    optimizer = AdamW(parameters, process_group=group)
    train(optimizer, parameters, range(1))
    before = copies(parameters)
    if rank() == 0:
        give(parameters, gradients(1, rank()))
        try:
            optimizer.step()
        except RuntimeError as error:  # torch.distributed.DistBackendError and others are of this type
            assert "slamb" not in str(error), error
        else:
            raise AssertionError("the step has not failed")
        require_same_bits(parameters, before)
    dist.barrier()


# ------------------------------------------------------------------------------------------------------------ GradScaler


class OneGradient(torch.nn.Module):
    """A model whose loss has exactly the given gradients."""

    def __init__(self, parameters):
        super().__init__()
        self.parameters_ = torch.nn.ParameterList(parameters)

    def forward(self, values):
        return sum((p * g).sum() for p, g in zip(self.parameters_, values))


def scaler_at(scale):
    return torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=1000, backoff_factor=0.5)


@check(2, needs=(2, 3), each=("adamw", "lamb", "slamb", "one_bit_adam", "zero_one_adam"))
def scales_of_ranks_may_differ(name):
    parameters, others = make_parameters(), make_parameters()
    optimizer, unscaled = make(name, parameters), make(name, others)
    scaler, model = scaler_at((2.0**10, 2.0**4)[rank()]), OneGradient(parameters)
    for step in range(8):
        optimizer.zero_grad()
        scaler.scale(model(gradients(step, rank()))).backward()
        scaler.step(optimizer)
        scaler.update()
        train(unscaled, others, range(step, step + 1))
        require_same_bits(parameters, others)  # scales are powers of two
    assert optimizer.statistics()["step"] == 8


@check(2, needs=(2, 3), each=("adamw", "one_bit_adam"))
def an_overflow_of_one_rank_skips_the_step_on_all_and_lowers_its_own_scale(name):
    parameters = make_parameters()
    optimizer = make(name, parameters)
    first = (2.0**10, 2.0**4)[rank()]
    scaler, model = scaler_at(first), OneGradient(parameters)
    for step in range(8):
        before = copies(parameters)
        values = gradients(step, rank())
        if step in (1, 5) and rank() == 1:
            values[0][0, 0] = float("inf")
        optimizer.zero_grad()
        scaler.scale(model(values)).backward()
        scaler.step(optimizer)
        scaler.update()
        assert (bits(parameters) == bits(before)) == (step in (1, 5)), step
    assert scaler.get_scale() == (first, first / 4)[rank()]
    found = optimizer.statistics()
    assert (found["step"], found["skipped_steps"]) == (6, 2)
    assert are_equal_on_all_ranks(parameters)


@check(2, needs=(2, 3))
def gradients_that_the_scaler_has_unscaled_are_not_unscaled_again():
    parameters, others = make_parameters(), make_parameters()
    optimizer, unscaled = make("adamw", parameters), make("adamw", others)
    scaler, model = scaler_at(2.0**8), OneGradient(parameters)
    for step in range(4):
        optimizer.zero_grad()
        scaler.scale(model(gradients(step, rank()))).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(parameters, 1e9)
        scaler.step(optimizer)
        scaler.update()
        train(unscaled, others, range(step, step + 1))
    require_near(parameters, others, 1e-6)


if __name__ == "__main__":
    run(globals())
