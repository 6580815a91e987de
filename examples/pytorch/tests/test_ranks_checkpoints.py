"""Checkpoints of several ranks: see ranks/checkpoints.py."""

from launch import make_tests

test_checkpoints = make_tests("checkpoints")
