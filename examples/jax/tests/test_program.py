"""The program of the guide, and what the guide says that it prints."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs/how-to/jax.md").read_text()
PRINTED = re.compile(r"(\w+): loss ([\d.]+), ([\d.]+) % correct, (\d+) bytes sent per rank and step")


def test_the_guide_has_the_program():
    assert "```python\n" + (ROOT / "examples/jax/train.py").read_text() + "```\n" in GUIDE


@pytest.mark.parametrize("compressor", ["none", "sign", "int8", "int4"])
def test_the_program_prints_the_lines_of_the_guide(compressor):
    lines = {found[1]: found.groups() for found in PRINTED.finditer(GUIDE)}
    environment = {**os.environ, "XLA_FLAGS": "--xla_cpu_collective_call_terminate_timeout_seconds=600"}
    done = subprocess.run(
        [sys.executable, ROOT / "examples/jax/train.py", compressor],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=240,
        env=environment,
    )
    name, loss, correct, sent = PRINTED.fullmatch(done.stdout.strip()).groups()
    expected = lines[compressor]
    assert name == expected[0] and sent == expected[3]
    # Products of matrices differ from processor to processor, and then signs of gradients.
    assert float(loss) == pytest.approx(float(expected[1]), abs=0.05)
    assert float(correct) == pytest.approx(float(expected[2]), abs=2)
