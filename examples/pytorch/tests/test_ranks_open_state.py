"""Process groups, states and parameters as other programs handle them, on several ranks: see ranks/open_state.py."""

from launch import make_tests

test_open_state = make_tests("open_state")
