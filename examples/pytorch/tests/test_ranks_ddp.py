"""Optimizers with DistributedDataParallel: see ranks/ddp.py."""

from launch import make_tests

test_ddp = make_tests("ddp")
