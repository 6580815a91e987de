"""The package as a whole: its version, its type stub, and the lines of the README."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import slamb
from slamb import _native

ROOT = Path(__file__).resolve().parents[3]
READMES = [ROOT / "README.md", ROOT / "examples" / "pytorch" / "README.md"]


def test_the_version_is_that_of_the_headers():
    header = (ROOT / "include" / "slamb" / "core" / "config.hpp").read_text()
    numbers = re.findall(r"#define SLAMB_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header)
    assert len(numbers) == 3
    assert slamb.__version__ == ".".join(numbers)


def _parameters_in_stub(stub):
    """The names of the parameters of each function of the stub; of methods without self."""
    found = {}
    for node in ast.parse(stub).body:
        for member in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(member, ast.FunctionDef):
                owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
                found[owner + member.name] = [a.arg for a in member.args.args if a.arg != "self"]
    return found


def _parameters_in_module():
    """The same of the compiled module."""
    found = {}
    for name, member in vars(_native).items():
        members = {name: member} if not isinstance(member, type) else {
            f"{name}.{method}": value
            for method, value in vars(member).items()
            if method == "__init__" or not method.startswith("_")
        }
        for full, value in members.items():
            if isinstance(value, property):
                found[full] = []
            elif hasattr(value, "__nb_signature__"):
                signature = value.__nb_signature__[0][0]
                found[full] = [a for a in re.findall(r"[(,] *(\w+)(?=[:,)])", re.sub(r"\[[^]]*\]", "", signature))
                               if a != "self"]  # fmt: skip
    return found


def test_the_stub_of_the_compiled_module_has_its_functions_and_their_parameters():
    stub = (Path(slamb.__file__).parent / "_native.pyi").read_text()
    assert _parameters_in_stub(stub) == _parameters_in_module()
    # The check can fail.
    assert _parameters_in_stub(stub.replace("rates: Sequence[float]", "rate: Sequence[float]")) != _parameters_in_module()
    assert _parameters_in_stub(stub.replace("def step_at(", "def step_to(")) != _parameters_in_module()


def test_the_package_says_that_it_is_typed():
    assert (Path(slamb.__file__).parent / "py.typed").exists()


def _lines_for_pytorch(readme):
    """The first block of Python after the heading."""
    text = readme.read_text()
    section = text[text.index("## Use it from PyTorch") :]
    return re.search(r"```python\n(.*?)```", section, re.DOTALL).group(1)


def test_both_readmes_have_the_same_fifteen_lines():
    first, second = (_lines_for_pytorch(readme) for readme in READMES)
    assert first == second
    assert len([line for line in first.splitlines() if line.strip()]) <= 15


@pytest.mark.parametrize("ranks", [None, 1, 2])
def test_the_lines_of_the_readme_run_as_they_stand(tmp_path, ranks):
    script = tmp_path / "readme.py"
    script.write_text(_lines_for_pytorch(READMES[0]))
    # torch 1.13 on Python 3.11 does not start ranks without both -r and -t.
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks), "-r", "1", "-t", "1"]
    command = [sys.executable, *(torchrun if ranks else []), str(script)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "loss" in ended.stdout
