"""The communication hook of DistributedDataParallel: see ranks/hook.py."""

from launch import make_tests

test_hook = make_tests("hook")
