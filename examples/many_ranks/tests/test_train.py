"""train.py and what it uses: the stacked model, the ranks' optimizers, the file of results."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(FOLDER))

import train  # noqa: E402
from ranks import Ranks, RanksError, load  # noqa: E402
from stacked_gpt import StackedGpt  # noqa: E402
from train import compare, methods, train_lm  # noqa: E402

SMALL = "--ranks 3 --width 16 --layers 2 --heads 2 --context 16 --batch 2 --steps 20 --evaluations 4".split()


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """That of SLAMB_MANY_RANKS, or a new one."""
    if "SLAMB_MANY_RANKS" in os.environ:
        return Path(os.environ["SLAMB_MANY_RANKS"])
    file = tmp_path_factory.mktemp("library") / "libslamb_many_ranks.so"
    sources = [FOLDER / "many_ranks.cpp", FOLDER / "optimizers.cpp"]
    command = [os.environ.get("CXX", "c++"), "-std=c++20", "-O1", f"-I{FOLDER.parents[1] / 'include'}", "-fPIC", "-shared"]
    subprocess.run([*command, "-pthread", *sources, "-o", file], check=True, timeout=600)
    return file


@pytest.fixture(autouse=True)
def short_text(monkeypatch):
    text = torch.frombuffer(bytearray(Path(train_lm.__file__).read_bytes()), dtype=torch.uint8)
    monkeypatch.setattr(train_lm, "read_library", lambda: (text[:-2000], text[-2000:], "made up"))


@pytest.fixture
def run(library, tmp_path):
    """Trains with small sizes. Returns the logs of the file of results."""

    def run_with(*options, file=tmp_path / "r.csv"):
        train.work(train.parse([str(file), "--library", str(library), *SMALL, "--seeds", "1", *options]))
        return compare.Results(file).logs

    return run_with


def gpt_of(seed, biases=True):
    torch.manual_seed(seed)
    return train_lm.Gpt(16, 2, 2, 16, biases)


class OnGpu:
    """As a library for ranks on a GPU."""

    def many_ranks_device(self):
        return b"cuda"


def batch_of(ranks, seed):
    text = torch.randint(256, (ranks, 2, 17), generator=torch.Generator().manual_seed(seed))
    return text[..., :-1], text[..., 1:]


def loss_of(gpt, inputs, targets):
    return torch.nn.functional.cross_entropy(gpt(inputs).flatten(0, 1), targets.flatten())


@pytest.mark.parametrize("biases", [True, False])
def test_a_stack_of_models_has_the_losses_and_gradients_of_each(biases):
    gpts = [gpt_of(seed, biases) for seed in range(3)]
    assert len(list(gpts[0].parameters())) == (29 if biases else 21)
    for gpt in gpts:  # norms and biases too
        for p in gpt.parameters():
            p.data += 0.1 * torch.randn_like(p)
    stacked = StackedGpt(gpts[0], 3)
    for name, p in stacked.parameters.items():
        p.data.copy_(torch.stack([dict(gpt.named_parameters())[name] for gpt in gpts]))
    inputs, targets = batch_of(3, 1)
    losses = stacked.losses(inputs, targets)
    losses.sum().backward()
    for rank, gpt in enumerate(gpts):
        loss = loss_of(gpt, inputs[rank], targets[rank])
        loss.backward()
        torch.testing.assert_close(losses[rank], loss)
        for name, p in gpt.named_parameters():
            torch.testing.assert_close(stacked.parameters[name].grad[rank], p.grad)
    mean = stacked.mean_parameters()
    torch.testing.assert_close(mean["norm.weight"][0], sum(gpt.norm.weight.data for gpt in gpts) / 3)
    assert stacked.losses(inputs[:1], targets[:1], mean).shape == (1,)


@pytest.mark.skipif(not hasattr(torch.nn.functional, "scaled_dot_product_attention"), reason="needs PyTorch 2")
@pytest.mark.parametrize("biases", [True, False])
def test_a_stack_in_bfloat16_is_near_that_in_float32(biases):
    of_float, of_bfloat16 = (StackedGpt(gpt_of(1, biases), 3, dtype) for dtype in (torch.float32, torch.bfloat16))
    for stacked in (of_float, of_bfloat16):
        losses = stacked.losses(*batch_of(3, 1))
        assert losses.dtype == torch.float32
        losses.sum().backward()
    torch.testing.assert_close(losses, of_float.losses(*batch_of(3, 1)), rtol=2e-3, atol=0)
    for name, p in of_float.parameters.items():
        other = of_bfloat16.parameters[name]
        assert other.dtype == other.grad.dtype == torch.float32
        assert (other.grad - p.grad).norm() < 0.03 * p.grad.norm(), name
    assert not torch.equal(of_bfloat16.parameters["bytes.weight"].grad, of_float.parameters["bytes.weight"].grad)


def test_the_drift_is_the_distance_from_the_mean_by_its_norm():
    stacked = StackedGpt(gpt_of(1), 2)
    assert stacked.drift() == 0.0
    for p in stacked.parameters.values():
        p.data[0], p.data[1] = 2.0, 4.0
    assert stacked.drift() == pytest.approx(1 / 3)


class Lamb:
    """Of one rank: docs/algorithms/lamb.md."""

    def __init__(self, parameters):
        self.p = parameters
        self.m = [torch.zeros_like(p) for p in parameters]
        self.v = [torch.zeros_like(p) for p in parameters]
        self.t = 0

    @torch.no_grad()
    def step(self, lr):
        self.t += 1
        for p, m, v in zip(self.p, self.m, self.v):
            m += 0.1 * (p.grad - m)
            v += 0.001 * (p.grad**2 - v)
            u = m / (1 - 0.9**self.t) / ((v / (1 - 0.999**self.t)).sqrt() + 1e-6)
            if p.dim() > 1:
                u += methods.WEIGHT_DECAY * p
            p -= lr * u * (p.norm() / u.norm() if p.dim() > 1 else 1.0)


@pytest.mark.parametrize("ranks", [1, 4])
def test_lamb_follows_its_equations_with_the_mean_of_the_ranks_gradients(ranks, library):
    """In double precision, and with all batches as one."""
    gpt = gpt_of(1)
    stacked = StackedGpt(gpt, ranks)
    gpt.double()
    reference = Lamb(list(gpt.parameters()))
    with Ranks(load(library), "lamb", "", list(stacked.parameters.values()), methods.WEIGHT_DECAY) as optimizers:
        for step in range(1, 21):
            inputs, targets = batch_of(ranks, step)
            stacked.zero_grad()
            losses = stacked.losses(inputs, targets)
            losses.sum().backward()
            optimizers.step(0.02)
            gpt.zero_grad()
            loss = loss_of(gpt, inputs.flatten(0, 1), targets.flatten(0, 1))
            loss.backward()
            reference.step(0.02)
            assert losses.mean().item() == pytest.approx(loss.item(), rel=1e-5)
    for name, p in gpt.named_parameters():
        for of_rank in stacked.parameters[name]:
            torch.testing.assert_close(of_rank.double(), p, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("optimizer", ["adamw", "lamb", "one_bit_lamb"])
def test_ranks_with_equal_batches_keep_equal_parameters(optimizer, library):
    stacked = StackedGpt(gpt_of(1), 3)
    options = "warm_up_steps=3" if optimizer == "one_bit_lamb" else ""
    with Ranks(load(library), optimizer, options, list(stacked.parameters.values()), 0.01) as optimizers:
        for step in range(6):
            stacked.zero_grad()
            stacked.losses(*(x.expand(3, -1, -1) for x in batch_of(1, step))).sum().backward()
            optimizers.step(0.01)
    for name, p in stacked.parameters.items():
        assert torch.equal(p, p[:1].expand_as(p)), name


METHODS = {  # and whether it sends less than dense LAMB, where SLAMB by default sends matrices of this size whole
    **{method: method.startswith(("one_bit", "zero_one", "slamb+", "slamb_by")) for method in methods.OWN},
    "lamb compressor=int8": True,
    "lamb compressor=int4": True,
    "slamb k=0.1 dense_below=0 local_steps=20": True,
    "slamb+int8 k=0.1 dense_below=0 local_steps=20": True,
    "slamb_by_differences parameter_sync=int4 dense_below=0": True,
    "one_bit_lamb warm_up_steps=4 update_bound=off": True,
    "one_bit_adam warm_up_steps=4 update_bound=None": True,
    "zero_one_adam update_bound=2 eps=1e-4": True,
}


def test_every_method_trains_and_sends_less_than_lamb_if_it_compresses(run):
    logs = run("--lr", "0.01", "--methods", *METHODS)
    assert [method for method, _, _ in logs] == sorted(METHODS)
    dense = logs["lamb", 0.01, 1][-1]["sent_bytes"]
    elements = sum(p.numel() for p in gpt_of(1).parameters())
    assert dense == pytest.approx(20 * 8 * elements * 2 / 3, rel=1e-3)
    for (method, _, _), log in logs.items():
        assert [row["step"] for row in log] == [5, 10, 15, 20]
        assert log[-1]["bits_per_byte"] < 7.9, method
        assert log[-1]["train_loss"] < log[0]["train_loss"], method
        assert (log[-1]["sent_bytes"] < 0.9 * dense) == METHODS[method], method


def test_a_training_is_made_once_and_the_report_reads_it(run, tmp_path, monkeypatch):
    run("--lr", "0.01", "--methods", "lamb")
    before = (tmp_path / "r.csv").read_text()
    made = []
    make_log = train.Trainings.make_log
    monkeypatch.setattr(train.Trainings, "make_log", lambda self, *key: made.append(key) or make_log(self, *key))
    run("--lr", "0.01", "--methods", "lamb", "adamw lr=0.002")
    assert made == [("adamw lr=0.002", 0.002, 1)]
    after = (tmp_path / "r.csv").read_text()
    assert all(line in after.splitlines() for line in before.splitlines())
    assert after.startswith("# many_ranks/train.py, 3 ranks, --width 16 ")
    assert after.splitlines()[1] == "method,lr,seed,step,train_loss,bits_per_byte,sent_bytes,seconds"

    command = [sys.executable, str(Path(compare.__file__)), "report", str(tmp_path / "r.csv")]
    ended = subprocess.run([*command, "--tables", "end", "course", "--seeds", "1"], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert "| `lamb` | 0.01 |" in ended.stdout and "| `adamw lr=0.002` | 0.002 |" in ended.stdout


def test_details_are_further_columns(run):
    options = ("--lr", "0.01", "--methods", "slamb_by_differences dense_below=0")
    log = run(*options, "--details")["slamb_by_differences dense_below=0", 0.01, 1]
    elements = sum(p.numel() for p in gpt_of(1).parameters())
    assert list(log[0])[-4:] == ["drift", "bytes_per_parameter", "ms_passes", "ms_step"]
    for row in log:
        assert 1e-5 < row["drift"] < 0.1
        assert row["bytes_per_parameter"] == pytest.approx(row["sent_bytes"] / elements / row["step"])
        assert row["ms_passes"] + row["ms_step"] == pytest.approx(1e3 * row["seconds"] / row["step"])
    with pytest.raises(compare.Failure, match="name another file"):
        run(*options)


def test_a_training_that_would_end_too_late_is_not_begun(run, tmp_path, monkeypatch):
    log = [{"step": 20.0, "train_loss": 1.0, "bits_per_byte": 1.0, "sent_bytes": 0.0, "seconds": 1000.0}]
    monkeypatch.setattr(train.Trainings, "make_log", lambda *of: log)
    with pytest.raises(compare.Failure, match="lamb, lr 0.01, seed 1 would end after --seconds"):
        run("--lr", "0.01", "--methods", "lamb", "adamw", "--seconds", "0")
    assert not list(tmp_path.glob("*"))
    run("--lr", "0.01", "--methods", "lamb")
    with pytest.raises(compare.Failure, match="adamw, lr 0.01, seed 1 would end after --seconds"):
        run("--lr", "0.01", "--methods", "lamb", "adamw", "--seconds", "999")
    assert run("--lr", "0.01", "--methods", "lamb", "adamw", "--seconds", "2000").keys() == {("lamb", 0.01, 1), ("adamw", 0.01, 1)}


def test_the_rate_rises_and_falls_to_its_final_part(run, tmp_path, monkeypatch):
    rates = []
    monkeypatch.setattr(Ranks, "step", lambda self, lr: rates.append(lr))
    run("--lr", "1", "--methods", "lamb", "--warm-up", "0.1", "--final-rate", "0.1")
    assert rates[:3] == [0.5, 1.0, 1.0]
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert rates[-1] == pytest.approx(0.1, abs=0.01) and rates[-1] > 0.1
    rates.clear()
    run("--methods", "lamb lr=1", file=tmp_path / "usual.csv")
    assert rates == [train.loop.part_of_rate(step, 1, 20) for step in range(20)]


def test_a_corpus_is_the_sources_in_a_folder(run, tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for i in range(40):
        (folder / f"{i}.py").write_text(f"# {i}\n" * 50)
        (folder / f"{i}.txt").write_text("no source")
    file = tmp_path / "of_corpus.csv"
    run("--lr", "0.01", "--methods", "lamb", "--corpus", str(folder), file=file)
    train_bytes, validation_bytes = (len(text) for text in train_lm.read_sources(folder)[:2])
    assert train_bytes + validation_bytes == sum(len(f"# {i}\n") * 50 for i in range(40))
    assert f"; {train_bytes} bytes for training, {validation_bytes} for validation, " in file.read_text()
    assert sum(map(len, train_lm.read_sources(folder, enough=2000)[:2])) == pytest.approx(2000, abs=250)


def test_equal_trainings_have_equal_losses(run, tmp_path):
    options = ("--lr", "0.01", "--methods", "slamb_by_differences")
    first, second = (run(*options, file=tmp_path / name) for name in ("a.csv", "b.csv"))
    losses = [[row["bits_per_byte"] for row in logs["slamb_by_differences", 0.01, 1]] for logs in (first, second)]
    assert losses[0] == losses[1]


def test_without_a_rate_it_is_searched_on_seed_0(run, monkeypatch):
    def made_up(self, method, lr, seed):
        return [{"step": 1.0, "train_loss": 1.0, "bits_per_byte": abs(lr - 0.008), "sent_bytes": 0.0, "seconds": 1.0}]

    monkeypatch.setattr(train.Trainings, "make_log", made_up)
    logs = run("--methods", "lamb")
    assert [key for key in logs if key[2] == 1] == [("lamb", 0.008, 1)]
    assert {lr for _, lr, seed in logs if seed == 0} == {0.002, 0.004, 0.008, 0.016}


@pytest.mark.parametrize(
    "options, message",
    [
        (["--methods", "lmab"], "--methods: 'lmab' is none of adamw, lamb, slamb, "),
        (["--methods", "lamb", ""], "--methods: '' is none of"),
        (["--methods", "lamb", "lamb k=0.1"], "slamb: lamb has no setting 'k'; it has compressor, beta1, "),
        (["--methods", "one_bit_lamb warm_up=2"], "has no setting 'warm_up'; it has warm_up_steps, "),
        (["--methods", "lamb compressor=int2"], "compressor must be 'none' or 'int8' or 'int4', not 'int2'"),
        (["--methods", "slamb parameter_sync=int4"], "parameter_sync other than 'average' needs compressor = 'random_k[+]int8'"),
        (["--methods", "slamb k"], "'k' is not NAME=VALUE"),
        (["--methods", "slamb k=2"], "k .*2"),
        (["--methods", "slamb k=many"], "k must be a number"),
        (["--methods", "slamb local_steps=0.5"], "local_steps must be an integer"),
        (["--methods", "adamw update_bound=2"], "adamw has no setting 'update_bound'"),
        (["--ranks", "0"], "--ranks: 0 is not at least 1"),
        (["--ranks", "65"], r"thread_group size = 65.* in \[1, 64\]"),
        (["--heads", "3"], "--heads: 3 does not divide --width 16"),
        (["--context", "2000"], "--context: 2000 bytes are more than the text for training or validation has"),
        (["--corpus", "nowhere"], "nowhere has no Python sources for training"),
        (["--library", "nowhere.so"], "nowhere.so cannot be loaded: .*README.md says how to build it"),
    ],
)
def test_mistakes_are_named_before_a_training(options, message, run, monkeypatch, tmp_path):
    monkeypatch.setattr(train.Trainings, "make_log", None)
    with pytest.raises((compare.Failure, ValueError, RanksError), match=message):
        run("--lr", "0.01", *options)
    assert not list(tmp_path.glob("*"))


def test_a_library_for_a_gpu_needs_one(run, monkeypatch):
    monkeypatch.setattr(train, "load", lambda file: OnGpu())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(compare.Failure, match="is for a GPU, and PyTorch finds none"):
        run("--methods", "lamb")


def test_other_trainings_are_not_mixed(run):
    run("--lr", "0.01", "--methods", "lamb")
    with pytest.raises(compare.Failure, match="name another file"):
        run("--lr", "0.01", "--methods", "lamb", "--context", "8")


def test_ranks_that_diverge_end_with_an_error(library):
    stacked = StackedGpt(gpt_of(1), 3)
    with Ranks(load(library), "lamb", "compare_every=1", list(stacked.parameters.values()), 0.01) as optimizers:
        optimizers.step(0.01)
        stacked.parameters["norm.weight"].data[2, 0] = 5.0
        for _ in range(2):
            with pytest.raises(RanksError, match="rank"):
                optimizers.step(0.01)
        with pytest.raises(RanksError, match="rank"):
            optimizers.sent_bytes()


def test_a_mistake_ends_the_program_with_a_message(library, tmp_path):
    command = [sys.executable, str(FOLDER / "train.py"), str(tmp_path / "r.csv"), "--library", str(library), "--methods", "lmab"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert ended.stderr.startswith("train.py: --methods: 'lmab' is none of")
