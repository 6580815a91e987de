"""Times steps on a GPU: slamb's optimizers beside those of torch, bitsandbytes and timm, in one run.

    python3 examples/pytorch/bench/gpu_step.py [--quick] [--seconds 110]

Prints tables in Markdown, each as soon as it is measured, the most useful first: BERT-Large (334 million parameters in 389 tensors)
and a small model (1 million in 69 tensors), in float32 and in bfloat16, without graphs and as CUDA graphs. In bfloat16 parameters
and gradients have 16 bits; slamb's "nearest" keeps float32 copies of the parameters, and "stochastic" rounds at random.

- ms: the time of a step on the device, of steps that are enqueued without waiting; the median over rounds, each of which times all
  rows of the table in turn.
- copies: that time, relative to a device copy of all elements as float32, which is the first row.
- state: bytes per parameter that the optimizer holds after a step, beside parameters and gradients: those that torch has allocated,
  and those that slamb has allocated itself (`optimizer.memory()["total"]`).

A row that cannot be measured says why. After --seconds no table is begun. All optimizers of a table step over the same parameters
and gradients, so that their states fit into the memory together: about 45 GB for BERT-Large. Exits with 77 without a GPU or without
a module for it.
"""

import argparse
import gc
import importlib
import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import torch

import slamb.torch
from slamb._load import module_for

RATE = 1e-6
WARM_UP = 5  # steps before any is timed; the warm-up of the 1-bit optimizers ends in them


def bert_shapes(words: int, positions: int, width: int, layers: int) -> list[tuple[int, ...]]:
    """The parameters of a BERT without its pooler: 5 of the embeddings, and 16 of each layer."""
    square, wide = [(width, width), (width,)], [(4 * width, width), (4 * width,)]
    layer = 4 * square + 2 * [(width,)] + wide + [(width, 4 * width), (width,)] + 2 * [(width,)]
    return [(words, width), (positions, width), (2, width), (width,), (width,)] + layers * layer


MODELS = {
    "BERT-Large": bert_shapes(30522, 512, 1024, 24),
    "small model": bert_shapes(1500, 128, 128, 4),
}
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Row(NamedTuple):
    """A line of a table."""

    name: str
    make: Callable[[list[torch.nn.Parameter]], Any]  # the optimizer; ImportError and ValueError say why there is none


class Measured(NamedTuple):
    """What a table says of a row."""

    name: str
    milliseconds: Optional[float] = None
    state_of_torch: Optional[float] = None  # bytes per parameter
    state_of_slamb: Optional[float] = None
    instead: str = ""  # why there are no numbers


def of_slamb(name: str, **options: Any) -> Row:
    said = ", ".join(f"{key}={value!r}" for key, value in options.items() if key not in ("local_steps", "warm_up_steps"))
    return Row(f"slamb `{name}({said})`", lambda p: getattr(slamb.torch, name)(p, lr=RATE, **options))


def of_other(module: str, name: str, **options: Any) -> Row:
    said = ", ".join(f"{key}={value!r}" for key, value in options.items())
    package = module.split(".")[0]
    return Row(f"{package} `{name}({said})`", lambda p: getattr(importlib.import_module(module), name)(p, lr=RATE, **options))


def rows_of(type_name: str, as_graph: bool) -> list[Row]:
    """The rows of a table, without the copy."""
    capturable = {"capturable": True} if as_graph else {}
    adamw = [of_other("torch.optim", "AdamW", **{kind: True}, **capturable) for kind in ("fused", "foreach")]
    slamb_options = {"local_steps": 0} if as_graph else {}
    others = [
        of_other("bitsandbytes.optim", "AdamW"),
        of_other("bitsandbytes.optim", "AdamW8bit"),
        of_other("bitsandbytes.optim", "LAMB"),
        of_other("timm.optim", "Lamb"),
    ]
    if type_name == "float32":
        ours = [
            of_slamb("AdamW"),
            *adamw,
            of_slamb("Lamb"),
            of_slamb("Lamb", max_gradient_norm=1.0),
            of_slamb("Slamb", **slamb_options),
            of_slamb("OneBitLamb", warm_up_steps=2),
            of_slamb("AdamW", moments="8-bit"),
            of_slamb("AdamW", moments="bf16-momentum"),
        ]
    else:
        ours = [
            of_slamb("AdamW", rounding="nearest"),
            of_slamb("AdamW", rounding="stochastic"),
            *adamw,
            of_slamb("Lamb", rounding="nearest"),
            of_slamb("Lamb", rounding="stochastic"),
            of_slamb("Lamb", rounding="stochastic", max_gradient_norm=1.0),
            of_slamb("AdamW", rounding="stochastic", moments="8-bit"),
            of_slamb("AdamW", rounding="stochastic", moments="bf16-momentum"),
            of_slamb("Slamb", rounding="nearest", **slamb_options),
            of_slamb("Slamb", rounding="stochastic", **slamb_options),
            of_slamb("OneBitLamb", rounding="nearest", warm_up_steps=2),
            of_slamb("OneBitLamb", rounding="stochastic", warm_up_steps=2),
        ]
    return ours if as_graph else ours + others


class Table(NamedTuple):
    model: str
    type_name: str
    as_graph: bool

    @property
    def title(self) -> str:
        shapes = MODELS[self.model]
        kind = "as CUDA graphs" if self.as_graph else "without graphs"
        return f"{self.model}, {elements_of(shapes):,} parameters in {len(shapes)} tensors, {self.type_name}, {kind}"


# In this order, because a run may be cut.
TABLES = [
    Table("BERT-Large", "float32", False),
    Table("BERT-Large", "bfloat16", False),
    Table("small model", "float32", False),
    Table("small model", "float32", True),
    Table("BERT-Large", "float32", True),
    Table("BERT-Large", "bfloat16", True),
    Table("small model", "bfloat16", False),
    Table("small model", "bfloat16", True),
]


def elements_of(shapes: list[tuple[int, ...]]) -> int:
    return sum(map(math.prod, shapes))


def markdown_of(title: str, copy: float, measured: list[Measured]) -> str:
    """A table.

    :param copy: milliseconds of the device copy
    """

    def number(value: Optional[float], digits: int) -> str:
        return "" if value is None else f"{value:.{digits}f}"

    lines = [
        f"### {title}",
        "",
        "| step | ms | copies | state by torch, bytes per parameter | by slamb |",
        "|---|--:|--:|--:|--:|",
        f"| device copy of all elements as float32 | {copy:.3f} | 1.00 | | |",
    ]
    for row in measured:
        if row.milliseconds is None:
            lines.append(f"| {row.name} | {row.instead} | | | |")
        else:
            cells = (
                number(row.milliseconds, 3),
                number(row.milliseconds / copy, 2),
                number(row.state_of_torch, 2),
                number(row.state_of_slamb, 2),
            )
            lines.append(f"| {row.name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def one_line(failure: BaseException) -> str:
    """A message that fits into a cell."""
    text = " ".join(str(failure).split()).replace("|", "\\|") or type(failure).__name__
    return text if len(text) <= 160 else text[:157] + "…"


def reason_of(failure: Exception) -> str:
    if isinstance(failure, ImportError):
        return "not installed"
    if isinstance(failure, torch.cuda.OutOfMemoryError):
        return "out of memory"
    return one_line(failure)


def medians_of(
    steps: list[Callable[[], Any]],
    milliseconds_of: Callable[[Callable[[], Any], int], float],
    rounds: int,
    least: float,
    ends_at: float = math.inf,
    now: Callable[[], float] = time.monotonic,
) -> list[float]:
    """The median time of each step over rounds, each of which times all of them in turn.

    :param milliseconds_of: of a step, in so many steps
    :param least: milliseconds that a step is timed for in a round
    :param ends_at: after this time no second round begins
    """
    counts = [max(1, min(200, round(least / max(milliseconds_of(step, 1), 1e-3)))) for step in steps]
    times: list[list[float]] = [[] for _ in steps]
    for number in range(rounds):
        if number > 0 and now() > ends_at:
            break
        for step, count, found in zip(steps, counts, times):
            found.append(milliseconds_of(step, count))
    return list(map(statistics.median, times))


def milliseconds_on_gpu(step: Callable[[], Any], count: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        step()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / count


def captured(optimizer: Any) -> Callable[[], Any]:
    """Replays a step. The function keeps the optimizer, whose memory the graph uses."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()

    def replay(optimizer: Any = optimizer) -> None:
        graph.replay()

    return replay


def make_parameters(shapes: list[tuple[int, ...]], dtype: torch.dtype) -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter((0.02 * torch.randn(shape, device="cuda")).to(dtype)) for shape in shapes]
    for p in parameters:
        p.grad = (1e-3 * torch.randn(p.shape, device="cuda")).to(dtype)
    return parameters


def first_steps(row: Row, parameters: list[torch.nn.Parameter], as_graph: bool) -> tuple[Callable[[], Any], Measured]:
    """The step of a row after its warm-up, and the state of its optimizer."""
    before = torch.cuda.memory_allocated()
    optimizer = row.make(parameters)
    for _ in range(WARM_UP):
        optimizer.step()
    torch.cuda.synchronize()
    elements = sum(p.numel() for p in parameters)
    own = optimizer.memory()["total"] / elements if hasattr(optimizer, "memory") else None
    held = (torch.cuda.memory_allocated() - before) / elements
    step = captured(optimizer) if as_graph else optimizer.step
    return step, Measured(row.name, None, held, own)


def measure(table: Table, rounds: int, least: float, ends_at: float = math.inf) -> str:
    shapes = MODELS[table.model]
    parameters = make_parameters(shapes, TYPES[table.type_name])
    source, target = (torch.zeros(elements_of(shapes), device="cuda") for _ in range(2))
    steps: list[Callable[[], Any]] = [lambda: target.copy_(source)]
    rows: list[Measured] = []
    for row in rows_of(table.type_name, table.as_graph):
        try:
            step, found = first_steps(row, parameters, table.as_graph)
        except Exception as failure:  # one row must not cost the others
            rows.append(Measured(row.name, instead=reason_of(failure)))
            continue
        steps.append(step)
        rows.append(found)
    medians = iter(medians_of(steps, milliseconds_on_gpu, rounds, least, ends_at))
    copy = next(medians)
    return markdown_of(table.title, copy, [row if row.instead else row._replace(milliseconds=next(medians)) for row in rows])


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="two short rounds: a test, not a measurement")
    arguments.add_argument("--seconds", type=float, default=110.0, help="no table is begun later")
    chosen = arguments.parse_args()
    try:
        if not torch.cuda.is_available():
            raise ValueError("no GPU")
        module_for("cuda")
    except ValueError as missing:
        print(f"skipped: {missing}", file=sys.stderr)
        return 77
    ends_at = time.monotonic() + chosen.seconds
    rounds, least = (2, 2.0) if chosen.quick else (7, 40.0)
    print(f"torch {torch.__version__}, slamb {slamb.__version__}, {torch.cuda.get_device_name()}\n", flush=True)
    for table in TABLES:
        if time.monotonic() > ends_at:
            print(f"Left out after {chosen.seconds:.0f} seconds: {table.title}\n", flush=True)
            continue
        print(measure(table, rounds, least, ends_at), flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
