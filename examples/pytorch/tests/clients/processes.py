"""Processes that run a client: a single one, or the ranks of torch.distributed as torchrun starts them.

`call(ranks, function, …)` calls a function of a test in each of them. They stay for further calls, because torch and the clients
start slowly. `call_afresh` starts new ones.
"""

import atexit
import datetime
import multiprocessing.connection
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch.multiprocessing

SECONDS = 240  # of a call
_TIMEOUT = datetime.timedelta(seconds=60)  # of a rank that waits for another


def call(ranks, function, *arguments, **named):
    """Calls the function in a single process or on all ranks.

    :return: the results, by rank
    :raises AssertionError: if it failed anywhere, with all reasons
    """
    if ranks not in _started:
        _started[ranks] = _Processes(ranks)
    try:
        return _started[ranks].call(function, arguments, named)
    except BaseException:
        _started.pop(ranks).end()
        raise


def call_afresh(ranks, function, *arguments, **named):
    """The same, in processes that have done nothing before."""
    if ranks in _started:
        _started.pop(ranks).end()
    return call(ranks, function, *arguments, **named)


class _Processes:
    def __init__(self, ranks):
        self._folder = tempfile.TemporaryDirectory()
        context = torch.multiprocessing.get_context("spawn")
        self._ends, self._processes = [], []
        for rank in range(ranks):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, rank, ranks, self._folder.name), daemon=True)
            process.start()
            there.close()
            self._ends.append(here)
            self._processes.append(process)

    def call(self, function, arguments, named):
        for end in self._ends:
            end.send((function, arguments, named))
        answers, failures, deadline = {}, [], time.monotonic() + SECONDS
        while len(answers) < len(self._ends):
            waiting = [end for end in self._ends if end not in answers]
            ready = multiprocessing.connection.wait(waiting, max(0.0, deadline - time.monotonic()))
            if not ready and not failures:
                failures.append(f"no answer of rank {' and '.join(str(self._ends.index(one)) for one in waiting)} in time")
            if not ready:
                break
            for end in ready:
                try:
                    passed, answers[end] = end.recv()
                except EOFError:
                    passed, answers[end] = False, "the process has ended"
                if not passed:
                    failures.append(f"rank {self._ends.index(end)}: {answers[end]}")
                    deadline = min(deadline, time.monotonic() + 2.0)  # others may wait for it
        assert not failures, "\n".join(failures)
        return [answers[end] for end in self._ends]

    def end(self):
        for process in self._processes:
            process.kill()
            process.join()
        self._folder.cleanup()


def _serve(end, rank, ranks, folder):
    # Libraries that a test does not use must not look for devices or for the network.
    os.environ.update(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    torch.set_num_threads(1)
    if ranks > 1:
        import torch.distributed as dist

        places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        os.environ.update({name: str(value) for name, value in places.items()})
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")  # clients look for them, and find the group initialized
        store = dist.FileStore(str(Path(folder) / "store"), ranks)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=_TIMEOUT)
    while True:
        try:
            function, arguments, named = end.recv()
        except EOFError:
            return
        try:
            answer = (True, function(*arguments, **named))
        except BaseException:
            answer = (False, traceback.format_exc())
        sys.stdout.flush()
        end.send(answer)


_started = {}  # by the number of ranks


@atexit.register
def _end_all():
    while _started:
        _started.popitem()[1].end()
