"""Other threads of Python run during a step, among them those of other ranks."""

import ast
import sys
import threading

import pytest
import torch
from conftest import LambOracle, assert_near, assert_same_bits, copies_of, give_gradients, make_parameters, noise

import slamb.torch as st
from slamb.torch._shards import Groups


def runs_during(call, attempts):
    """True if another thread of Python runs within one of so many calls.

    With a switch interval of an hour, a thread that waits for the lock of the interpreter gets it only if the caller gives it
    away.
    """
    is_within, seen = False, []
    gate = threading.Lock()
    gate.acquire()

    def other():
        gate.acquire()
        seen.append(is_within)

    thread = threading.Thread(target=other, daemon=True)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(3600.0)
    try:
        thread.start()
        gate.release()
        for _ in range(attempts):
            is_within = True
            call()
            is_within = False
            if seen:
                break
        result = seen == [True]
    finally:
        sys.setswitchinterval(interval)
    thread.join(timeout=20)
    return result


@pytest.fixture
def optimizer():
    p = [torch.nn.Parameter(noise((100000,), 1))]
    optimizer = st.AdamW(p, threads=1)
    give_gradients(p, 1)
    optimizer.step()
    return optimizer


def test_another_thread_runs_while_a_step_computes(optimizer):
    core = optimizer._parts[0].core
    assert runs_during(lambda: core.step([0.1]), 10000)


def test_another_thread_runs_while_a_state_is_saved(optimizer):
    core = optimizer._parts[0].core
    state = torch.empty(core.state_bytes(True), dtype=torch.uint8)
    address, count = state.data_ptr(), state.numel()
    assert runs_during(lambda: core.save_state(address, count, True), 10000)


def test_no_other_thread_runs_during_a_call_that_keeps_the_lock():
    assert not runs_during(lambda: sorted(range(1000)), 100)


class Meeting:
    """Where two ranks, which are threads of this process, exchange bytes."""

    def __init__(self):
        self.barrier = threading.Barrier(2)
        self.brought = [b"", b""]


class ThreadRanks:
    """One of two ranks, with the interface of slamb.torch._ranks.Ranks."""

    size = 2
    has_nccl = False
    own = property(lambda self: self)

    def __init__(self, rank, meeting):
        self.rank, self.meeting = rank, meeting
        self.calls = []
        self.fails = False

    def exchange(self, call, mine):
        self.calls.append(call)
        if self.fails:
            raise KeyError("the network is down")
        self.meeting.brought[self.rank] = bytes(mine)
        self.meeting.barrier.wait(timeout=20)
        brought = [torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in self.meeting.brought]
        self.meeting.barrier.wait(timeout=20)
        return brought

    def all_reduce_sum(self, values):
        one, other = self.exchange("all_reduce_sum", values)
        torch.frombuffer(values, dtype=torch.float32).copy_(one.view(torch.float32) + other.view(torch.float32))

    def broadcast(self, values, root):
        torch.frombuffer(values, dtype=torch.uint8).copy_(self.exchange("broadcast", values)[root])

    def all_gather(self, mine, everything):
        torch.frombuffer(everything, dtype=torch.uint8).copy_(torch.cat(self.exchange("all_gather", mine)))

    def all_to_all(self, send, receive):
        parts = [one.chunk(2)[self.rank] for one in self.exchange("all_to_all", send)]
        torch.frombuffer(receive, dtype=torch.uint8).copy_(torch.cat(parts))

    def gather_values(self, value):
        everything = self.exchange("gather_values", repr(value).encode())
        return [ast.literal_eval(bytes(one).decode()) for one in everything]

    def gather_words(self, word):
        return [int(one.view(torch.int64)) for one in self.exchange("gather_words", word.to_bytes(8, sys.byteorder))]


def on_two_ranks(work, monkeypatch):
    """The results of work(ranks) on two ranks."""
    mine = threading.local()
    groups = Groups("a group", None)
    monkeypatch.setattr("slamb.torch._optimizer.groups_of_parameters", lambda *args: groups)
    monkeypatch.setattr("slamb.torch._optimizer.Ranks", lambda *args, **kwargs: mine.ranks)
    meeting, results = Meeting(), [None, None]

    def run(rank):
        mine.ranks = ThreadRanks(rank, meeting)
        try:
            results[rank] = work(mine.ranks)
        except BaseException as error:
            results[rank] = error
            meeting.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def gradients_of_rank(p, step, rank):
    give_gradients(p, 100 * rank + step)
    return [one.grad.double().numpy() for one in p]


def test_two_ranks_in_threads_of_one_process_take_steps_with_the_mean_gradient(monkeypatch):
    start = make_parameters()

    def work(ranks):
        p = copies_of(start)
        optimizer = st.AdamW(p, lr=0.02, threads=1)
        for step in range(1, 6):
            gradients_of_rank(p, step, ranks.rank)
            optimizer.step()
        optimizer.compare_ranks()
        assert "all_reduce_sum" in ranks.calls
        assert optimizer.statistics()["sent_bytes"] > 0
        return p

    one, other = on_two_ranks(work, monkeypatch)
    assert_same_bits(one, other)
    p = copies_of(start)
    oracle = LambOracle(p, adapt=False)
    for step in range(1, 6):
        both = [gradients_of_rank(p, step, rank) for rank in range(2)]
        oracle.step([(a + b) / 2 for a, b in zip(*both)], 0.02)
    assert_near(one, oracle.p)


@pytest.mark.parametrize("cls, compressor", [(st.AdamW, "sign"), (st.Slamb, "random_k"), (st.Slamb, "top_k")])
def test_two_ranks_in_threads_of_one_process_exchange_compressed_data(cls, compressor, monkeypatch):
    start = make_parameters()

    def work(ranks):
        p = copies_of(start)
        optimizer = cls(p, compressor=compressor, threads=1)
        for step in range(1, 4):
            gradients_of_rank(p, step, ranks.rank)
            optimizer.step()
        optimizer.synchronize_parameters()
        optimizer.compare_ranks()
        return p

    assert_same_bits(*on_two_ranks(work, monkeypatch))


def test_an_error_of_a_collective_reaches_the_caller_of_the_step(monkeypatch):
    start = make_parameters()

    def work(ranks):
        p = copies_of(start)
        optimizer = st.AdamW(p, threads=1, check_gradients=False)
        ranks.fails = True
        give_gradients(p, 1)
        with pytest.raises(KeyError, match="the network is down"):
            optimizer.step()
        assert_same_bits(p, start)
        return True

    assert on_two_ranks(work, monkeypatch) == [True, True]


def test_an_error_on_one_of_two_ranks_is_an_error_of_the_test(monkeypatch):
    def work(ranks):
        if ranks.rank == 1:
            raise LookupError("of rank 1")
        return ranks.all_gather(memoryview(b"12345678"), memoryview(bytearray(16)))

    with pytest.raises((LookupError, threading.BrokenBarrierError)):
        on_two_ranks(work, monkeypatch)
