"""Exchanges between ranks, parameters that differ, failures, GradScaler: see ranks/exchange.py."""

from launch import make_tests

test_exchange = make_tests("exchange")
