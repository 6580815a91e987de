"""Parameters of which each rank has a part: see ranks/sharded.py."""

from launch import make_tests

test_sharded = make_tests("sharded", is_alone=True)
