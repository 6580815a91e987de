"""Checkpoints of DeepSpeed on several ranks: see ranks/deepspeed_states.py."""

from launch import make_tests

test_deepspeed_states = make_tests("deepspeed_states")
