"""States of parameters of which each rank has a part: see ranks/sharded_states.py."""

from launch import make_tests

test_sharded_states = make_tests("sharded_states", is_alone=True)
