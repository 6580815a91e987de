"""Checks that fail, each in its way, between others that pass: launch.py must tell them apart."""

import os

import torch
import torch.distributed as dist

from checks import (
    are_equal_on_all_ranks,
    check,
    distance,
    gather,
    raises,
    rank,
    require_near,
    require_same_bits,
    run,
)


@check(2)
def passes():
    assert gather(rank()) == [0, 1]


@check(2)
def fails_on_rank_1():
    assert rank() == 0


@check(2)
def fails_on_all_ranks_with_text_in_two_lines():
    raise ValueError("first line\nsecond line")


@check(2)
def leaves_rank_0_in_a_collective():
    if rank() == 1:
        raise ZeroDivisionError
    dist.all_reduce(torch.ones(3))


@check(2)
def passes_after_one_that_left_a_rank_alone():
    assert gather(rank()) == [0, 1]


@check(2)
def helpers_that_require_reject():
    one, zero = torch.tensor([1.0, 2.0]), torch.tensor([0.0])
    require_same_bits([one], [one.clone()])
    require_near([one], [one * (1 + 1e-6)], 1e-5)
    with raises(AssertionError, "other bits"):
        require_same_bits([zero], [-zero])
    with raises(AssertionError, "0 and 0"):
        require_same_bits([], [])
    with raises(AssertionError, "differ by"):
        require_near([one], [one * (1 + 1e-4)], 1e-5)
    with raises(AssertionError):
        require_near([one * float("nan")], [one], 1e-5)
    with raises(AssertionError, "0 and 0"):
        require_near([], [], 1e-5)
    assert abs(distance([one], [one + 2]) - 8**0.5) < 1e-6
    assert are_equal_on_all_ranks([one])
    assert not are_equal_on_all_ranks([one + rank()])


@check(2)
def helpers_that_expect_errors_reject():
    with raises(ValueError, "a word", "another"):
        raise ValueError("a word and another")
    with raises(AssertionError, "no ValueError"), raises(ValueError):
        pass
    with raises(AssertionError, "does not name"), raises(ValueError, "a word"):
        raise ValueError("something else")
    with raises(KeyError), raises(ValueError):
        raise KeyError
    with raises(UnicodeError), raises(ValueError):  # a subclass is another type
        raise UnicodeError


@check((2, 3), needs=(99, 0))
def needs_a_torch_that_does_not_exist():
    raise AssertionError


@check(2, each=("a", "b"))
def has_two_values(value):
    assert value == "a"


@check(2)
def ends_the_process():
    if rank() == 1:
        os._exit(3)


@check(2)
def comes_after_the_end():
    pass


@check(2)
def waits_for_ever():
    import time

    time.sleep(10000)


if __name__ == "__main__":
    run(globals())
