"""Launches ranks by torchrun, and makes each check that they make a test of its own.

A script of the folder ranks has named checks (see ranks/checks.py). `make_tests(script)` makes one test function, with a case for
each check and number of ranks. All selected cases with the same number of ranks share one launch, because processes start slowly,
but scripts that take long have launches of their own.
"""

import importlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

RANKS = Path(__file__).parent / "ranks"
VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
SECONDS = 300  # for all checks of a launch; then ranks print where they are, and exit
_LINE = re.compile(r"^\[default(\d+)\]:(ok|FAILED) (\S+?)(?:: (.*))?$")


def checks_of(script):
    """The checks of a script, in its order."""
    sys.path.insert(0, str(RANKS))
    try:
        checks = importlib.import_module("checks")
        return checks.found_in(vars(importlib.import_module(script)))
    finally:
        sys.path.remove(str(RANKS))


class Torchrun:
    """A script that has been run by a number of ranks: its status, output and errors."""

    def __init__(self, script, ranks, arguments=(), seconds=SECONDS):
        with tempfile.TemporaryDirectory() as folder:
            self.status, self.output, self.errors = self._run(folder, script, ranks, arguments, seconds + 30)

    def _run(self, folder, script, ranks, arguments, seconds):
        # The rendezvous c10d finds free ports. torch 1.13 on Python 3.11 does not start without both -r and -t.
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0"),
            *("--monitor_interval", "0.1", "--nproc_per_node", str(ranks), "-r", "1", "-t", "1", "--log_dir", folder),
            *(str(RANKS / f"{script}.py"), *arguments),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, cwd=folder, env=environment, **pipes, text=True, start_new_session=True)
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)  # ends the ranks too
            try:
                output, errors = process.communicate(timeout=40)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # the ranks too, because communicate() waits for all writers
                output, errors = process.communicate()
            errors += f"\nstill running after {seconds} s"
        return process.returncode, output, errors


class Launch:
    """The results of checks.

    :param names: as script:check; every rank makes them in this order
    :param script: makes the checks
    :param arguments: of the script, before the names; None: those of run.py
    """

    def __init__(self, ranks, names, seconds=SECONDS, script="run", arguments=None):
        self.ranks = ranks
        self.results = {name: {} for name in names}  # by rank: None if it passed, or the reason
        arguments = [str(seconds)] if arguments is None else arguments
        self.run = Torchrun(script, ranks, [*arguments, *names], seconds)
        for line in self.run.output.splitlines():
            match = _LINE.match(line)
            if match and match[3] in self.results:
                self.results[match[3]][int(match[1])] = None if match[2] == "ok" else match[4] or "no reason"

    def problem_of(self, name):
        """The reasons of all ranks at which a check did not pass; None if it passed on all."""
        said = self.results[name]
        silent = [rank for rank in range(self.ranks) if rank not in said]
        reasons = [f"rank {rank}: {why}" for rank, why in sorted(said.items()) if why is not None]
        if silent:
            log = "\n".join((self.run.output + self.run.errors).splitlines()[-60:])
            reasons.append(
                f"no result of rank {', '.join(map(str, silent))}; torchrun's status is {self.run.status}:\n{log}"
            )
        return "\n".join(reasons) or None


_launches = {}  # by number of ranks, and by script if it is alone


def make_tests(script, is_alone=False):
    """A test function for all checks of a script.

    :param is_alone: True: its launches make no checks of other scripts
    """
    cases = []
    for check in checks_of(script):
        needs = ".".join(map(str, check.needs))
        marks = [pytest.mark.skip(f"needs torch {needs}; this is {torch.__version__}")] if check.needs > VERSION else []
        for ranks in check.ranks:
            cases.append(pytest.param(check.name, ranks, id=f"{check.name}-{ranks}", marks=marks))

    @pytest.mark.parametrize(("name", "ranks"), cases)
    def test(name, ranks, request):
        launch = ranks, test.launch_of_checks
        if launch not in _launches:
            _launches[launch] = Launch(ranks, _selected(request.session.items, *launch))
        problem = _launches[launch].problem_of(f"{script}:{name}")
        if problem is not None:
            pytest.fail(problem, pytrace=False)

    test.script_of_checks = script
    test.launch_of_checks = script if is_alone else ""
    return test


def _selected(items, ranks, launch):
    names = []
    for item in items:
        function = getattr(item, "function", None)
        script = getattr(function, "script_of_checks", None)
        if script and function.launch_of_checks == launch and item.callspec.params["ranks"] == ranks and not item.get_closest_marker("skip"):
            names.append(f"{script}:{item.callspec.params['name']}")
    return names
