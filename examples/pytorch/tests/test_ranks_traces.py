"""Traces in double precision, replayed over ranks: see ranks/traces.py."""

from launch import make_tests

test_traces = make_tests("traces")
