"""The launcher, and the helpers of checks, reject what they must."""

import pytest

from launch import RANKS, Launch, checks_of, make_tests


@pytest.fixture(scope="module")
def launched():
    names = [f"defective:{one.name}" for one in checks_of("defective") if one.needs < (99, 0)]
    return Launch(2, [name for name in names if name != "defective:waits_for_ever"])


@pytest.mark.parametrize(
    "name",
    [
        "passes",
        "passes_after_one_that_left_a_rank_alone",
        "helpers_that_require_reject",
        "helpers_that_expect_errors_reject",
        "has_two_values[a]",
    ],
)
def test_accepts(launched, name):
    problem = launched.problem_of(f"defective:{name}")
    assert problem is None, problem


@pytest.mark.parametrize(
    ("name", "said", "not_said"),
    [
        ("fails_on_rank_1", ["rank 1: defective.py:", "AssertionError in `assert rank() == 0`"], "rank 0"),
        ("fails_on_all_ranks_with_text_in_two_lines", ["rank 0:", "rank 1:", "first line | second line"], "no result"),
        ("leaves_rank_0_in_a_collective", ["rank 0:", "rank 1:", "ZeroDivisionError"], "no result"),
        ("has_two_values[b]", ["rank 0:", "rank 1:"], "no result"),
        ("ends_the_process", ["no result of rank", "torchrun's status is 1"], "rank 0: "),
        ("comes_after_the_end", ["no result of rank 0, 1"], "rank 0: "),
    ],
)
def test_rejects(launched, name, said, not_said):
    problem = launched.problem_of(f"defective:{name}")
    assert problem is not None
    assert [part for part in said if part not in problem] == []
    assert not_said not in problem


def test_ranks_that_do_not_end_are_ended():
    launched = Launch(2, ["defective:passes", "defective:waits_for_ever"], seconds=2)
    assert launched.problem_of("defective:passes") is None
    assert "no result of rank 0, 1" in launched.problem_of("defective:waits_for_ever")
    assert "waits_for_ever" in launched.run.errors  # the traceback of where it was


def test_every_script_has_a_module_of_tests():
    scripts = {path.stem for path in RANKS.glob("*.py") if "@check(" in path.read_text()} - {"defective"}
    modules = {path.stem.replace("test_ranks_", "") for path in RANKS.parent.glob("test_ranks_*.py") if "make_tests(" in path.read_text()}
    assert scripts == modules - {"launch"}


def test_checks_are_found_by_number_of_ranks_and_version():
    cases = {case.id: case for case in make_tests("defective").pytestmark[0].args[1]}
    assert "passes-2" in cases and "has_two_values[b]-2" in cases
    assert {f"needs_a_torch_that_does_not_exist-{n}" for n in (2, 3)} <= set(cases)
    assert [case.id for case in cases.values() if case.marks] == [
        "needs_a_torch_that_does_not_exist-2",
        "needs_a_torch_that_does_not_exist-3",
    ]
