"""Named checks that each rank of a launch makes.

A check is a function with the decorator `check`. It fails by an exception. Each rank prints `ok NAME` or `FAILED NAME: why` for
each. Scripts end with `run(globals())`, so that torchrun can run one of them by hand; run.py makes checks of several.

After a check that fails, the process group is made anew: one that fails between two collectives does not disturb the next.
"""

import contextlib
import dataclasses
import datetime
import faulthandler
import functools
import gc
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

TIMEOUT = datetime.timedelta(seconds=30)  # of a rank that waits for another


@dataclasses.dataclass
class Check:
    name: str
    ranks: tuple[int, ...]  # the numbers of ranks with which it is made
    needs: tuple[int, int]  # the oldest torch
    call: Callable[[], None]


def check(ranks, needs=(1, 13), each=None):
    """Makes a function a check; with `each`, a check for each of these names, which is its argument.

    :param ranks: a number of ranks, several, or a function that returns those of a name
    """

    def numbers_of(name):
        numbers = ranks(name) if callable(ranks) else ranks
        return numbers if isinstance(numbers, tuple) else (numbers,)

    def mark(function):
        if each is None:
            function.checks = [Check(function.__name__, numbers_of(""), needs, function)]
        else:
            function.checks = [
                Check(f"{function.__name__}[{name}]", numbers_of(name), needs, lambda name=name: function(name))
                for name in each
            ]
        return function

    return mark


def found_in(names: dict[str, Any]) -> list[Check]:
    return [one for value in names.values() for one in getattr(value, "checks", [])]


class _Store:
    """The store of the launch, and the place of this process in it."""

    store: Optional[dist.Store] = None
    rank = 0
    size = 1


def join(name: str, rank: Optional[int] = None, size: Optional[int] = None) -> None:
    """Initializes torch.distributed, with all processes of the launch, or as one of those that use the same name."""
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore(name, _Store.store),
        rank=_Store.rank if rank is None else rank,
        world_size=_Store.size if size is None else size,
        timeout=TIMEOUT,
    )


def leave() -> None:
    gc.collect()  # of what holds groups: torch 1.13 aborts at exit if one is left
    if dist.is_initialized():
        dist.destroy_process_group()


def run(names: dict[str, Any]) -> None:
    """Makes the checks of a script that the command line names, or all."""
    found = {one.name: one for one in found_in(names)}
    make([(name, found[name]) for name in sys.argv[1:] or found], 300.0)


def start() -> None:
    """Initializes torch.distributed with all processes of the launch."""
    torch.set_num_threads(1)
    _Store.store, _Store.rank, _Store.size = next(rendezvous("env://", timeout=TIMEOUT))
    gc.freeze()  # the modules: gc.collect() need not look at them
    join("start")


def make(checks: list[tuple[str, Check]], seconds: float) -> None:
    """Makes these checks, and prints the results by their names. After so many seconds it prints where it is, and exits."""
    start()
    faulthandler.dump_traceback_later(seconds, exit=True)
    for number, (name, one) in enumerate(checks):
        why = _why_it_fails(one)
        if why is not None:
            leave()  # so that collectives of the others fail now
        line = f"ok {name}" if why is None else f"FAILED {name}: {why}"
        sys.stdout.write(line + "\n")  # by one call, because ranks write at the same time
        sys.stdout.flush()
        if not _all_passed(f"check {number}", why is None):
            leave()
            join(f"after check {number}")
    leave()
    faulthandler.cancel_dump_traceback_later()


def _all_passed(key: str, passed: bool) -> bool:
    """Waits until all ranks have ended a check. True if it passed on all."""
    assert _Store.store is not None
    _Store.store.set(f"{key}, rank {_Store.rank}", "passed" if passed else "failed")
    keys = [f"{key}, rank {one}" for one in range(_Store.size)]
    _Store.store.wait(keys, TIMEOUT + TIMEOUT)
    return all(_Store.store.get(one) == b"passed" for one in keys)


def _why_it_fails(one: Check) -> Optional[str]:
    try:
        one.call()
    except BaseException as error:
        here = str(Path(__file__).parent)
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(here)]
        at = ", ".join(f"{Path(f.filename).name}:{f.lineno}" for f in frames[1:])
        text = f"{type(error).__name__}: {error}" if str(error) else f"{type(error).__name__} in `{frames[-1].line}`"
        return f"{at}: {text}".replace("\n", " | ")
    return None


# ------------------------------------------------------------------------------------------------------- What checks share


def rank() -> int:
    return dist.get_rank()


def size() -> int:
    return dist.get_world_size()


def gather(value: Any, group: Any = None) -> list[Any]:
    """Every rank's value."""
    everything: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everything, value, group=group)
    return everything


@contextlib.contextmanager
def raises(kind: type[BaseException], *words: str):
    """Requires an exception of exactly this type with all these words in its message."""
    try:
        yield
    except BaseException as error:
        if type(error) is not kind:
            raise
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"the message does not name {missing}: {error}"
    else:
        raise AssertionError(f"no {kind.__name__} was raised")


def bits(tensors) -> list[bytes]:
    return [t.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes() for t in tensors]


def copies(tensors) -> list[torch.Tensor]:
    return [t.detach().clone() for t in tensors]


def distance(some, others) -> float:
    """The L2 norm of the difference."""
    return sum(float(((a.detach().double() - b.detach().double()) ** 2).sum()) for a, b in zip(some, others)) ** 0.5


def require_same_bits(some, others, what: str = "tensors") -> None:
    assert len(some) == len(others) > 0, f"{len(some)} and {len(others)} {what}"
    differ = [i for i, (a, b) in enumerate(zip(bits(some), bits(others))) if a != b]
    assert not differ, f"{what} {differ} have other bits: distance {distance(some, others)}"


def require_near(some, others, relative: float, what: str = "tensors") -> None:
    """Requires a difference of at most `relative` of the largest element of `others`, in each element."""
    assert len(some) == len(others) > 0, f"{len(some)} and {len(others)} {what}"
    largest = max(float(b.detach().abs().max()) for b in others)
    for i, (a, b) in enumerate(zip(some, others)):
        assert a.shape == b.shape, f"{what} {i}: {tuple(a.shape)} and {tuple(b.shape)}"
        error = float((a.detach().double() - b.detach().double()).abs().max())
        assert error <= relative * largest, f"{what} {i} differ by {error / largest:.3g} of the largest element"


def are_equal_on_all_ranks(tensors, group: Any = None) -> bool:
    everything = gather(bits(tensors), group)
    return all(one == everything[0] for one in everything)


SHAPES = ((40, 30), (30,), (3, 5, 2), (1,))


def noise(shape, *seeds: int) -> torch.Tensor:
    """Normal random numbers, the same at every call."""
    return _noise(tuple(shape), seeds).clone()


@functools.lru_cache(maxsize=10000)
def _noise(shape: tuple[int, ...], seeds: tuple[int, ...]) -> torch.Tensor:
    seed = 0
    for one in seeds:
        seed = seed * 1009 + one + 1
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make_parameters(shapes=SHAPES, seed: int = 1, dtype=torch.float32) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(noise(shape, seed, i).to(dtype)) for i, shape in enumerate(shapes)]


def gradients(step: int, of_rank: int, shapes=SHAPES) -> list[torch.Tensor]:
    """A part that all ranks have in all steps, a larger one of the rank, and noise."""
    return [
        noise(shape, 7, i) + 2 * noise(shape, 8, i, of_rank) + noise(shape, 9, i, of_rank, step)
        for i, shape in enumerate(shapes)
    ]


def mean_gradients(step: int, ranks, shapes=SHAPES) -> list[torch.Tensor]:
    of_ranks = [gradients(step, one, shapes) for one in ranks]
    return [(sum(g.double() for g in of_one) / len(of_one)).float() for of_one in zip(*of_ranks)]


def give(parameters, values) -> None:
    for p, g in zip(parameters, values):
        p.grad = g.to(p.dtype)


def train(optimizer, parameters, steps, of_rank: Optional[int] = None) -> None:
    """Takes these steps, each with this rank's gradients."""
    shapes = [p.shape for p in parameters]
    for step in steps:
        give(parameters, gradients(step, rank() if of_rank is None else of_rank, shapes))
        optimizer.step()
