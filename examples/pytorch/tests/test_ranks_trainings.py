"""Short trainings: see ranks/trainings.py."""

from launch import make_tests

test_trainings = make_tests("trainings")
