"""Process groups that are a part of the ranks: see ranks/groups.py."""

from launch import make_tests

test_groups = make_tests("groups")
