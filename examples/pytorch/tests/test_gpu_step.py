"""bench/gpu_step.py, as far as it needs no GPU: shapes, the layout of tables, medians, and a run over stand-ins for the GPU."""

import importlib.util
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[1] / "bench" / "gpu_step.py"


def load():
    described = importlib.util.spec_from_file_location("gpu_step", SCRIPT)
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    return module


bench = load()


def test_the_models_have_the_announced_sizes():
    large, small = bench.MODELS["BERT-Large"], bench.MODELS["small model"]
    assert (len(large), bench.elements_of(large)) == (389, 334_092_288)
    assert (len(small), bench.elements_of(small)) == (69, 1_001_984)
    assert large.count((1024, 1024)) == 96 and large.count((4096, 1024)) == large.count((1024, 4096)) == 24


def test_tables_cover_all_models_types_and_kinds_once_and_name_each_row_once():
    assert len(set(bench.TABLES)) == len(bench.TABLES) == 8
    assert bench.TABLES[0] == bench.Table("BERT-Large", "float32", False)
    for table in bench.TABLES:
        names = [row.name for row in bench.rows_of(table.type_name, table.as_graph)]
        assert len(set(names)) == len(names)
        assert any(name.startswith("torch `AdamW(fused=True") for name in names)
        assert any("8-bit" in name for name in names)
        assert any(name.startswith("timm") for name in names) is not table.as_graph
        assert "|" not in "".join(names)


def test_the_layout_of_a_table():
    rows = [
        bench.Measured("slamb `AdamW()`", 3.5, 0.0, 8.125),
        bench.Measured("torch `AdamW()`", 7.0, 8.0),
        bench.Measured("timm `Lamb()`", instead="not installed"),
    ]
    assert bench.markdown_of("a model", 0.875, rows) == (
        "### a model\n"
        "\n"
        "| step | ms | copies | state by torch, bytes per parameter | by slamb |\n"
        "|---|--:|--:|--:|--:|\n"
        "| device copy of all elements as float32 | 0.875 | 1.00 | | |\n"
        "| slamb `AdamW()` | 3.500 | 4.00 | 0.00 | 8.12 |\n"
        "| torch `AdamW()` | 7.000 | 8.00 | 8.00 |  |\n"
        "| timm `Lamb()` | not installed | | | |\n"
    )
    assert bench.reason_of(ImportError("no module")) == "not installed"
    assert bench.reason_of(ValueError("a | b\n c")) == "a \\| b c"
    assert len(bench.reason_of(ValueError("x" * 500))) == 158


def test_rows_are_timed_in_turn_for_as_many_steps_as_they_need():
    calls = []
    steps = ["fast", "slow"]

    def milliseconds_of(step, count):
        calls.append((step, count))
        return {"fast": 1.0, "slow": 1000.0}[step] + len(calls)

    found = bench.medians_of(steps, milliseconds_of, rounds=3, least=20.0)
    assert [step for step, _ in calls] == ["fast", "slow"] * 4
    assert [count for _, count in calls[2:]] == [10, 1] * 3
    assert found == [1.0 + 5, 1000.0 + 6]
    calls.clear()
    bench.medians_of(steps, milliseconds_of, rounds=9, least=20.0, ends_at=5.0, now=lambda: 6.0)
    assert len(calls) == 4  # one round


def test_without_a_gpu_it_says_so():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (77, "")
    assert done.stderr.strip() == "skipped: no GPU"


@pytest.mark.parametrize("type_name", ["float32", "bfloat16"])
def test_a_table_is_measured_over_stand_ins_for_the_gpu(monkeypatch, type_name):
    monkeypatch.setattr(bench.torch.cuda, "memory_allocated", lambda: 0)
    monkeypatch.setattr(bench.torch.cuda, "synchronize", lambda: None)
    monkeypatch.setitem(bench.MODELS, "small model", bench.bert_shapes(30, 8, 16, 2))
    for name in ("randn", "zeros"):
        original = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *a, device=None, original=original, **o: original(*a, **o))

    def milliseconds_of(step, count):
        for _ in range(count):
            step()
        return 2.0

    monkeypatch.setattr(bench, "milliseconds_on_gpu", milliseconds_of)
    text = bench.measure(bench.Table("small model", type_name, False), rounds=2, least=2.0)
    lines = text.splitlines()
    elements = f"{bench.elements_of(bench.MODELS['small model']):,}"
    assert lines[0] == f"### small model, {elements} parameters in 37 tensors, {type_name}, without graphs"
    cells = {line.split(" | ")[0][2:]: [cell.strip(" |") for cell in line.split(" | ")[1:]] for line in lines[4:]}
    assert len(cells) == 1 + len(bench.rows_of(type_name, False))
    ours = [name for name in cells if name.startswith("slamb")]
    assert ours and all(cells[name][:2] == ["2.000", "1.00"] for name in ours)  # host memory has every combination
    eight = next(name for name in ours if "8-bit" in name)
    assert 2.0 < float(cells[eight][3]) < 12.0 and math.isfinite(float(cells[eight][3]))
    assert all(len(line.split("|")) == 7 for line in lines[2:])
