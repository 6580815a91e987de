"""Processes end in order."""

from launch import Torchrun


def test_a_process_ends_in_order_while_an_optimizer_lives():
    exits = Torchrun("exits", 4)
    assert exits.status == 0, exits.errors
    assert "terminate called" not in exits.errors
    assert "leaked" not in exits.errors
