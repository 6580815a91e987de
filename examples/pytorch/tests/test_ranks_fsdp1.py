"""Parameters of FullyShardedDataParallel: see ranks/fsdp1.py."""

from launch import make_tests

test_fsdp1 = make_tests("fsdp1", is_alone=True)
