"""AdamW over the parts of FSDP2's parameters: see ranks/sharded.py."""

from launch import make_tests

test_sharded = make_tests("sharded")
