"""Processes end in order, whatever ends first: see ranks/exits.py. gpu/test_ranks.py does the same over NCCL."""

import pytest
from launch import Torchrun

ORDERS = ("optimizer", "group", "held_group", "interpreter")


def require_end_in_order(order, ranks, *arguments):
    exits = Torchrun("exits", ranks, [order, *arguments])
    assert exits.status == 0, exits.output + exits.errors
    assert exits.output.count("ended") == ranks, exits.output
    assert "terminate called" not in exits.errors
    assert "leaked" not in exits.errors
    return exits


@pytest.mark.parametrize("order", ORDERS)
def test_a_process_ends_in_order(order):
    exits = require_end_in_order(order, 4 if order == "group" else 2)
    assert exits.output.count("refused: RuntimeError slamb: the process group has been destroyed") == (4 if order == "group" else 0)
