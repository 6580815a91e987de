"""Process groups that are a part of all ranks, and groups of one rank."""

import torch
import torch.distributed as dist

from checks import (
    are_equal_on_all_ranks,
    bits,
    check,
    copies,
    gather,
    give,
    gradients,
    join,
    leave,
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
from checkpoints import ranks_in
from optimizers import OPTIMIZERS, make
from slamb.torch import AdamW, compression_hook


def grid():
    """The row and the column of this rank in a grid of 2 × 2 ranks, with their groups."""
    rows = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    columns = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
    return rows[rank() // 2], columns[rank() % 2]


# In a grid as of data and tensor parallelism, rows have different parameters and gradients.
@check(4, each=OPTIMIZERS)
def in_rows_of_a_grid_numbers_are_those_of_runs_of_their_own(name):
    place, row_number = rank(), rank() // 2
    row, column = grid()
    parameters = make_parameters(seed=10 + row_number)
    optimizer = make(name, parameters, process_group=row)
    for step in range(12):
        train(optimizer, parameters, range(step, step + 1))
        others = torch.tensor([float(step), float(row_number)])
        dist.all_reduce(others, group=column)
        assert others.tolist() == [2.0 * step, 1.0]
    optimizer.synchronize_parameters()
    sent, found = optimizer.statistics()["sent_bytes"], copies(parameters)
    assert bits(parameters) != bits(gather(parameters)[(place + 2) % 4])  # the rows differ
    del optimizer, row, column
    leave()
    # The same as a default group of two ranks.
    join(f"row {row_number}, {name}", rank=place % 2, size=2)
    parameters = make_parameters(seed=10 + row_number)
    optimizer = make(name, parameters)
    train(optimizer, parameters, range(12), of_rank=place)
    optimizer.synchronize_parameters()
    require_same_bits(found, parameters)
    assert optimizer.statistics()["sent_bytes"] == sent
    del optimizer
    leave()
    join(f"all again, {name}")


@check(4)
def two_optimizers_exchange_in_turns_in_rows_and_columns():
    row, column = grid()
    ours = make_parameters(seed=1), make_parameters(seed=2)
    theirs = make_parameters(seed=1), make_parameters(seed=2)
    groups = (row, column)
    in_group = ([rank() // 2 * 2, rank() // 2 * 2 + 1], [rank() % 2, rank() % 2 + 2])
    optimizers = [AdamW(of, lr=1e-2, process_group=group) for of, group in zip(ours, groups)]
    references = [torch.optim.AdamW(of, lr=1e-2) for of in theirs]
    for step in range(8):
        for i in (0, 1):
            train(optimizers[i], ours[i], range(step, step + 1))
            give(theirs[i], mean_gradients(step, in_group[i]))
            references[i].step()
    for i in (0, 1):
        require_near(ours[i], theirs[i], 1e-6)
        assert are_equal_on_all_ranks(ours[i], groups[i])
        assert not are_equal_on_all_ranks(ours[i])


@check(4)
def ranks_of_a_group_count_from_zero_in_broadcasts_and_collections():
    row, _ = grid()
    parameters = make_parameters(seed=rank())
    optimizer = AdamW(parameters, process_group=row, compressor="int8")
    optimizer.broadcast_parameters(root=1)
    require_same_bits(parameters, make_parameters(seed=rank() // 2 * 2 + 1))
    train(optimizer, parameters, range(2))
    optimizer.consolidate_state_dict(to=1)
    keys = ranks_in(optimizer.state_dict())
    assert keys == (["rank0_of_2", "rank1_of_2"] if rank() % 2 else ["rank0_of_2"]), keys


@check(4)
def a_process_outside_of_the_group_is_told():
    group = dist.new_group([0, 2])
    if rank() in (0, 2):
        parameters = make_parameters()
        train(AdamW(parameters, process_group=group), parameters, range(1))
    else:
        for construct in (lambda: AdamW(make_parameters(), process_group=group), lambda: compression_hook("int8", group)):
            with raises(ValueError, "this process is not in process_group"):
                construct()


def trains_alone(optimizer, parameters):
    """Requires the numbers of torch's AdamW on this rank's gradients."""
    theirs = make_parameters()
    reference = torch.optim.AdamW(theirs)
    for step in range(5):
        train(optimizer, parameters, range(step, step + 1))
        give(theirs, gradients(step, rank()))
        reference.step()
    require_near(parameters, theirs, 1e-6)
    assert optimizer.statistics()["sent_bytes"] == 0
    assert ranks_in(optimizer.state_dict()) == []  # the state of torch.optim.AdamW


@check(2)
def a_group_of_one_of_two_ranks_exchanges_nothing():
    groups = [dist.new_group([one]) for one in range(2)]
    parameters = make_parameters()
    trains_alone(AdamW(parameters, process_group=groups[rank()]), parameters)
    assert not are_equal_on_all_ranks(parameters)


@check(1)
def a_single_rank_exchanges_nothing():
    for group in (None, dist.group.WORLD, dist.new_group([0])):
        parameters = make_parameters()
        trains_alone(AdamW(parameters, process_group=group), parameters)


@check(1, each=OPTIMIZERS)
def every_optimizer_works_on_a_single_rank(name):
    parameters, others = make_parameters(), make_parameters()
    optimizer, without = make(name, parameters), make(name, others, exchange=False)
    for step in range(10):
        train(optimizer, parameters, range(step, step + 1))
        train(without, others, range(step, step + 1))
    optimizer.broadcast_parameters()
    optimizer.synchronize_parameters()
    optimizer.compare_ranks()
    optimizer.consolidate_state_dict()
    assert optimizer.with_averaged_parameters(lambda: 7) == 7
    require_same_bits(parameters, others)
    assert size() == 1 and optimizer.statistics()["sent_bytes"] == 0


@check(1)
def equal_gradients_are_accepted_on_a_single_rank():
    parameters = make_parameters()
    optimizer = AdamW(parameters)
    give(parameters, [torch.ones_like(p) for p in parameters])
    optimizer.step()
    assert optimizer.statistics()["step"] == 1


if __name__ == "__main__":
    run(globals())
