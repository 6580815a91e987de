"""compare.py and what it uses: the search of a rate, files of results, tables."""

import math
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1]
sys.path.insert(0, str(FOLDER))

import compare  # noqa: E402
import train_lm  # noqa: E402

from training import curves, loop, report  # noqa: E402

RATES = [0.001, 0.002, 0.004, 0.008, 0.016, 0.032]


def log_of(*losses, seconds=1.0):
    return [
        {"step": 10.0 * i, "train_loss": 1.0, "bits_per_byte": loss, "sent_bytes": 100.0 * i, "seconds": seconds * i}
        for i, loss in enumerate(losses, 1)
    ]


class Counted(compare.Comparison):
    """Whose trainings have made-up losses by rate."""

    def __init__(self, loss_of, tmp_path, rates=None):
        super().__init__(compare.Results(tmp_path / "r.csv", "made up"), "lm", 4, "", [], rates or RATES)
        self.loss_of = loss_of
        self.tried = []

    def train(self, method, lr, seed):
        assert seed == report.SEARCH_SEED
        self.tried.append(lr)
        return log_of(self.loss_of(lr))


@pytest.mark.parametrize("best", RATES)
def test_search_finds_the_best_rate_and_tries_both_sides_and_at_least_four(best, tmp_path):
    comparison = Counted(lambda lr: abs(math.log(lr / best)), tmp_path)
    assert comparison.search("lamb") == best
    assert len(comparison.tried) == len(set(comparison.tried)) >= 4
    at = RATES.index(best)
    assert {RATES[i] for i in (at - 1, at + 1) if 0 <= i < len(RATES)} <= set(comparison.tried)


def test_search_goes_on_where_a_rate_further_away_is_better(tmp_path):
    losses = {0.001: 1.0, 0.002: 3.0, 0.004: 2.0, 0.008: 2.5, 0.016: 5.0, 0.032: 6.0}
    comparison = Counted(losses.__getitem__, tmp_path, [0.0005, *RATES])
    losses[0.0005] = 1.5
    assert comparison.search("lamb") == 0.001
    assert 0.0005 in comparison.tried


def test_search_treats_a_failed_training_as_the_worst(tmp_path):
    comparison = Counted(lambda lr: math.nan if lr > 0.003 else 0.001 / lr, tmp_path)
    assert comparison.search("lamb") == 0.002


@pytest.mark.parametrize("failed", [math.nan, math.inf, 8.0, 1e30])
def test_search_goes_below_rates_that_all_fail(failed, tmp_path):
    comparison = Counted(lambda lr: failed if lr > 0.0005 else 2.0 + lr, tmp_path, [0.00025 * 2**i for i in range(8)])
    assert comparison.search("lamb") == 0.00025
    comparison = Counted(lambda lr: failed, tmp_path)
    comparison.search("slamb")
    assert min(comparison.tried) == min(RATES)


def test_search_goes_below_a_rate_that_fails_beside_one_that_does_not(tmp_path):
    losses = {0.004: 7.9, 0.002: 9.0, 0.008: 9.0, 0.001: 3.0, 0.0005: 4.0}
    comparison = Counted(losses.__getitem__, tmp_path, [0.0005, *RATES])
    assert comparison.search("lamb") == 0.001


def test_search_takes_a_given_rate(tmp_path):
    comparison = Counted(lambda lr: 1.0, tmp_path)
    assert comparison.search("slamb k=0.3 lr=0.5") == 0.5
    assert comparison.tried == []


def test_results_are_read_as_they_were_written(tmp_path):
    file = tmp_path / "r.csv"
    results = compare.Results(file, "train_lm.py, 4 ranks")
    results.add("lamb", 0.002, 1, log_of(3.0, 2.5))
    results.add("slamb k=0.3", 0.004, 1, log_of(3.0, math.inf))
    again = compare.Results(file, "train_lm.py, 4 ranks")
    assert again.logs == results.logs
    assert not list(tmp_path.glob("*.new"))


def test_results_of_other_trainings_are_not_mixed(tmp_path):
    file = tmp_path / "r.csv"
    compare.Results(file, "train_lm.py, 4 ranks").add("lamb", 0.002, 1, log_of(3.0))
    with pytest.raises(compare.Failure, match="has trainings by 'train_lm.py, 4 ranks', not by 'train_lm.py, 2 ranks'"):
        compare.Results(file, "train_lm.py, 2 ranks")
    file.write_text("method,lr\n")
    with pytest.raises(compare.Failure, match="is not a file of compare.py"):
        compare.Results(file)


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "is not a file of compare.py"),
        ("# a\n", "has no trainings"),
        ("# a\nmethod,lr,seed,step\n", "has no trainings"),
        ("# a\nmethod,lr,seed,step\nlamb,0.1\n", "line 3: not a row"),
        ("# a\nmethod,lr,seed,step\nlamb,0.1,1,1\nlamb,abc,1,1\n", "line 4: not a row"),
        ("# a\nmethod,lr,step\nlamb,0.1,1\n", "line 3: not a row"),
    ],
)
def test_damaged_results_are_named_with_the_line(text, message, tmp_path):
    (tmp_path / "r.csv").write_text(text)
    with pytest.raises(compare.Failure, match=message):
        compare.Results(tmp_path / "r.csv")


def test_results_that_are_not_there_or_not_text_are_named(tmp_path):
    with pytest.raises(compare.Failure, match="r.csv cannot be read"):
        compare.Results(tmp_path / "r.csv")
    (tmp_path / "r.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(compare.Failure, match="r.csv cannot be read"):
        compare.Results(tmp_path / "r.csv")


def test_only_one_program_adds_to_a_file(tmp_path):
    results, others = (compare.Results(tmp_path / "r.csv", "made up") for _ in range(2))
    with results.locked():
        with pytest.raises(compare.Failure, match="another compare.py adds to"):
            with others.locked():
                pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("run none/r.csv --task images", "none/r.csv cannot be written"),
        ("run r.csv --task images --methods lamb nosuch", "--methods: 'nosuch' is none of ddp"),
        ("run r.csv --task images --rates 0.1 0.01", "--rates: must be above 0 and ascend"),
        ("run r.csv --task images --ranks 0", "--ranks: 0 is not at least 1"),
        ("run r.csv --task images --seeds 1 2 1", "--seeds: 1 2 1 has a seed twice"),
        ("run r.csv --task images -- --se 3", "--se behind -- is set by compare.py itself"),
        ("run r.csv --task images -- --nonsense 3", "unrecognized arguments: --nonsense 3"),
        ("run r.csv --task images --best-of none.csv", "none.csv cannot be read"),
        ("report none.csv", "none.csv cannot be read"),
        ("report none.csv -- --steps 3", "--steps 3: only run passes options to trainings"),
        ("times none.csv", "none.csv cannot be read"),
        ("times none.csv --within -1", "--within: -1 is not in [0, 100)"),
    ],
)
def test_wrong_arguments_of_compare_are_named_before_a_training(arguments, message, tmp_path):
    command = [sys.executable, str(FOLDER / "compare.py"), *arguments.split()]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert ended.returncode in (1, 2) and message in ended.stderr, ended.stderr
    assert "Traceback" not in ended.stderr
    assert not list(tmp_path.iterdir())


def test_a_program_that_is_ended_ends_its_training_first(tmp_path):
    """The command notes that it was told to end."""
    note = tmp_path / "note"
    code = f"trap 'echo told > {note}; exit 1' TERM; echo ready > {note}; while :; do sleep 0.05; done"
    program = f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import compare; compare.work = lambda: "
    program += f"compare.run_to_its_end(['bash', '-c', {code!r}], dict()); compare.main()"

    def obey():
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # which scripts ignore in what they start in the background

    for number, status in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        child = subprocess.Popen([sys.executable, "-c", program], preexec_fn=obey)
        while not note.exists() or note.read_text() != "ready\n":
            assert child.poll() is None
            time.sleep(0.05)
        child.send_signal(number)
        assert child.wait(60) == status
        assert note.read_text() == "told\n"


def test_a_command_that_fails_shows_what_it_said():
    with pytest.raises(compare.Failure, match="ended with status 3:\nout\nerr"):
        compare.run_to_its_end(["bash", "-c", "echo out; echo err >&2; exit 3"], {})


def test_tables_have_means_deviations_and_the_distance_from_the_best_dense_method(capsys):
    logs = {("lamb", 0.01, seed): log_of(3.0, loss) for seed, loss in ((0, 7.0), (1, 1.0), (2, 3.0))}
    logs |= {("slamb", 0.02, seed): log_of(3.0, loss) for seed, loss in ((0, 6.0), (1, 2.0), (2, 3.0))}
    logs["lamb", 0.02, 0] = log_of(3.0, math.nan)
    report.write(logs, None, [1, 2], None)
    printed = capsys.readouterr().out
    assert "| `lamb` | **7.000** | failed |" in printed
    assert "| `slamb` |  | **6.000** |" in printed
    assert "| `lamb` | 0.01 | 2.000 ± 1.414 | +0.0 % | 0.0 | 1.0 |" in printed
    assert "| `slamb` | 0.02 | 2.500 ± 0.707 | +25.0 % | 0.0 | 1.0 |" in printed
    assert "| method | step 10 | step 20 |" in printed
    assert "| `slamb` | 3.000 ± 0.000 | 2.500 ± 0.707 |" in printed


def test_tables_are_of_the_best_rate_and_say_what_is_left_out(capsys):
    logs = {("lamb", 0.01, 0): log_of(7.0), ("lamb", 0.02, 0): log_of(2.0)}
    logs |= {("lamb", lr, seed): log_of(100 * lr) for lr in (0.01, 0.02) for seed in (1, 2)}
    logs |= {("slamb", 0.02, 0): log_of(6.0), ("slamb", 0.02, 1): log_of(6.0)}
    report.write(logs, None, [1, 2], None)
    printed = capsys.readouterr().out
    assert "| `lamb` | 0.02 | 2.000 ± 0.000 | +0.0 %" in printed
    assert "(`slamb` is left out: no training at its best rate 0.02 with seed 2.)" in printed
    with pytest.raises(ValueError, match="there is no training by 'lmab', only by lamb, slamb"):
        report.write(logs, ["lmab"], [1], None)


def test_no_rate_is_best_where_all_failed(capsys):
    report.write({("lamb", lr, 0): log_of(math.nan) for lr in (0.01, 0.02)}, None, [1], None)
    assert "| `lamb` | failed | failed |" in capsys.readouterr().out


def test_a_seed_that_failed_is_said(capsys):
    logs = {("lamb", 0.01, seed): log_of(3.0, loss) for seed, loss in ((0, 2.0), (1, 1.0), (2, math.nan), (3, 1.2))}
    report.write(logs, None, [1, 2, 3], None)
    assert "| `lamb` | 0.01 | failed |  | 0.0 | 1.0 |" in capsys.readouterr().out


def test_one_seed_has_no_deviation(capsys):
    report.write({("lamb", 0.01, 1): log_of(3.0)}, None, [1], None)
    assert "| `lamb` | 0.01 | 3.000 | +0.0 % |" in capsys.readouterr().out


def test_a_search_that_failed_as_a_whole_has_no_rate(capsys):
    logs = {("lamb", lr, 0): log_of(math.nan) for lr in (0.01, 0.02)} | {("lamb", 0.01, 1): log_of(math.nan)}
    assert report.rate_of(logs, "lamb") is None
    report.write(logs | {("slamb", 0.01, seed): log_of(3.0) for seed in (0, 1)}, None, [1], None)
    printed = capsys.readouterr().out
    assert "(`lamb` is left out: no search has found a rate.)" in printed
    assert "| `slamb` | 0.01 | 3.000 |  |" in printed


def test_without_a_dense_method_nothing_is_compared_with_one(capsys):
    report.write({("slamb", 0.01, 1): log_of(3.0, 2.0)}, None, [1], None, ["end"])
    (row,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("| `slamb`"))
    cells = row.split(" | ")
    assert cells[1] == "0.01" and cells[3] == "" and cells[-1] == " |", row
    assert "nan" not in row


def test_losses_are_not_beside_those_of_a_dense_method_that_failed(capsys):
    report.write({("lamb", 0.01, 1): log_of(math.nan), ("slamb", 0.01, 1): log_of(3.0)}, None, [1], None, ["end"])
    assert "| `slamb` | 0.01 | 3.000 |  |" in capsys.readouterr().out


def test_a_file_without_a_column_or_a_search_says_so(tmp_path, capsys):
    (tmp_path / "r.csv").write_text("# lm\nmethod,lr,seed,step,train_loss,bits_per_byte,seconds\nlamb,0.01,1,10,1,1,1\n")
    with pytest.raises(compare.Failure, match="r.csv lacks a column: step, train_loss, .*, sent_bytes, seconds"):
        compare.Results(tmp_path / "r.csv")
    report.write({("lamb", 0.01, 1): log_of(3.0)}, None, [1], None, ["search"])
    assert capsys.readouterr().out == "\n(No rates were searched: there is no training with seed 0.)\n"


@pytest.mark.parametrize(
    "table, row",
    [("search", "| `lamb` | **2.000** |"), ("end", "| `lamb` | 0.01 | 3.000 |"), ("course", "| `lamb` | 4.000 |")],
)
def test_a_report_has_the_tables_that_are_asked_for(table, row, capsys):
    logs = {("lamb", 0.01, 0): log_of(2.0), ("lamb", 0.01, 1): log_of(4.0, 3.0)}
    report.write(logs, None, [1], None, [table])
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| `")]
    assert len(printed) == 1 and printed[0].startswith(row)


def test_a_report_is_of_several_files_of_the_same_training(tmp_path):
    names = [tmp_path / name for name in ("a.csv", "b.csv", "c.csv")]
    for file, training, method in zip(names, ("one", "one", "two"), ("lamb", "slamb", "slamb")):
        compare.Results(file, training).add(method, 0.01, 1, log_of(3.0))
    logs = compare.together(names[:2])
    assert logs == {(method, 0.01, 1): log_of(3.0) for method in ("lamb", "slamb")}
    with pytest.raises(compare.Failure, match="c.csv has trainings by 'two', but .*a.csv by 'one'"):
        compare.together([names[0], names[2]])
    with pytest.raises(compare.Failure, match="have a training by lamb, rate 0.01, seed 1"):
        compare.together([names[0], names[0]])


@pytest.mark.parametrize(
    "method, dense",
    [("lamb", True), ("lamb lr=0.1", True), ("lamb compressor=int8", False), ("ddp+fp16", False), ("slamb k=1", False)],
)
def test_dense_methods_send_every_float(method, dense):
    assert report.is_dense(method) == dense


def test_a_plot_without_matplotlib_is_refused_before_the_tables(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="matplotlib"):
        report.write({("lamb", 0.01, 1): log_of(3.0)}, None, [1], Path("plot.svg"))
    with pytest.raises(ImportError, match="matplotlib"):
        report.write({("lamb", 0.01, 1): log_of(3.0)}, None, [1], None, ends=Path("ends.svg"))
    assert capsys.readouterr().out == ""


def test_times_of_several_trainings_or_without_an_end_are_refused():
    logs = {("ddp", 0.01, 1): log_of(3.0), ("ddp", 0.02, 1): log_of(2.0)}
    with pytest.raises(ValueError, match="1gbit has several trainings by ddp"):
        report.write_times({"1gbit": logs}, "ddp")
    with pytest.raises(ValueError, match="1gbit has no training by ddp"):
        report.write_times({"1gbit": {("lamb", 0.01, 1): log_of(3.0)}}, "ddp")
    with pytest.raises(ValueError, match="no training by ddp for 1gbit has ended with a finite loss"):
        report.write_times({"1gbit": {("ddp", 0.01, 1): log_of(math.nan)}}, "ddp")


def test_times_are_until_the_loss_of_dense_adamw(capsys):
    logs = {
        ("ddp", 0.01, 1): log_of(3.0, 2.5, 2.0, seconds=10.0),
        ("slamb", 0.01, 1): log_of(2.5, 1.9, 1.8, seconds=2.0),
        ("lamb", 0.01, 1): log_of(3.0, 2.9, 2.1),
    }
    report.write_times({"1gbit": logs}, "ddp")
    printed = capsys.readouterr().out
    assert "| `ddp` | 30 | 30 | 30 | 1.0 |" in printed
    assert "| `slamb` | 6 | 20 | 4 | 7.5 |" in printed
    assert "| `lamb` | 3 | not reached (2.100) |  |  |" in printed


def test_times_of_several_seeds_have_seconds_of_one(capsys):
    links = {("ddp", 0.01, 1): log_of(3.0, 2.5, 2.0, seconds=10.0), ("slamb", 0.02, 1): log_of(2.5, 1.9, 1.8, seconds=2.0)}
    links["lamb", 0.01, 1] = log_of(3.0, 2.9, 2.1)
    losses = {("ddp", 0.01, 1): log_of(3.0, 2.5, 2.0), ("ddp", 0.01, 2): log_of(3.0, 2.5, 2.2)}
    losses |= {("slamb", 0.02, 1): log_of(2.5, 1.9, 1.8), ("slamb", 0.02, 2): log_of(2.5, 2.4, 2.2)}
    losses |= {("lamb", 0.01, 1): log_of(3.0, 2.5, 2.1), ("lamb", 0.01, 2): log_of(3.0, 2.1, 2.1)}
    ignored = {("ddp", 0.01, 0): log_of(1.0), ("slamb", 0.01, 1): log_of(1.0), ("slamb", 0.02, 0): log_of(9.0)}
    report.write_times({"1gbit": links}, "ddp", losses | ignored)
    printed = capsys.readouterr().out
    assert "bits_per_byte 2.100 ± 0.141, the end of `ddp`" in printed
    assert "| `ddp` | 30 | 30 ± 0 | 30 ± 0 | 1.0 ± 0.0 |" in printed
    assert "| `slamb` | 6 | 25 ± 7 | 5 ± 1 | 6.2 ± 1.8 |" in printed  # 20 and 30 steps, 4 and 6 seconds
    assert "| `lamb` | 3 | not reached by 1 of 2 (2.100 ± 0.000) |  |  |" in printed
    report.write_times({"1gbit": links}, "ddp", losses | ignored, within=5.0)
    printed = capsys.readouterr().out
    assert "2.205 ± 0.148, the end of `ddp` and 5 %" in printed
    assert "| `lamb` | 3 | 25 ± 7 | 2 ± 1 | 12.5 ± 3.5 |" in printed  # 30 and 20 steps, 3 and 2 seconds
    del losses["slamb", 0.02, 2]
    with pytest.raises(ValueError, match="no losses of slamb for 1gbit at rate 0.02 with seed 2"):
        report.write_times({"1gbit": links}, "ddp", losses)


def test_times_without_seconds_where_the_losses_have_a_step_are_refused():
    links = {("ddp", 0.01, 1): log_of(3.0, 2.5, 2.0), ("lamb", 0.01, 1): log_of(3.0, 2.0)[1:]}
    losses = {("ddp", 0.01, 1): log_of(3.0, 2.5, 2.0), ("lamb", 0.01, 1): log_of(2.0, 2.0)}
    with pytest.raises(ValueError, match="1gbit, lamb: no seconds at step 10, where the losses have one"):
        report.write_times({"1gbit": links}, "ddp", losses)


def test_times_are_of_links_with_different_names_and_losses_of_the_same_training(tmp_path, monkeypatch, capsys):
    def run(*words):
        monkeypatch.setattr(sys, "argv", ["compare.py", "times", *map(str, words)])
        compare.work()

    files = {}
    (tmp_path / "other").mkdir()
    for name, training in (
        ("lm.csv", "train_lm.py, 4 ranks --steps 9; data; torch 2"),
        ("100mbit.csv", "train_lm.py, 4 ranks 100mbit --steps 9; data; torch 2"),
        ("unlimited.csv", "train_lm.py, 4 ranks unlimited --steps 9; data; torch 2"),
        ("longer.csv", "train_lm.py, 4 ranks 100mbit --steps 99; data; torch 2"),
        ("other/100mbit.csv", "train_lm.py, 4 ranks 100mbit --steps 9; data; torch 2"),
    ):
        files[name] = tmp_path / name
        compare.Results(files[name], training).add("ddp", 0.01, 1, log_of(3.0))
    run(files["100mbit.csv"], files["unlimited.csv"], "--losses", files["lm.csv"])
    assert capsys.readouterr().out.count("| `ddp` | 1 | 10 | 1 | 1.0 |") == 2
    with pytest.raises(compare.Failure, match="longer.csv has trainings by .* which are not those by .* over a link"):
        run(files["longer.csv"], "--losses", files["lm.csv"])
    with pytest.raises(compare.Failure, match="two files are named 100mbit"):
        run(files["100mbit.csv"], files["other/100mbit.csv"])


def test_a_plot_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    logs = {"lamb": [log_of(3.0, 2.5), log_of(3.1, 2.4)], "slamb": [log_of(3.0, math.nan)]}
    curves.draw(tmp_path / "plot.svg", logs, "bits_per_byte", "validation loss, bits per byte")
    text = (tmp_path / "plot.svg").read_text()
    assert "megabytes sent per rank" in text and "slamb" in text


def test_ends_are_drawn_without_those_that_failed_or_sent_nothing(tmp_path):
    pytest.importorskip("matplotlib")
    logs = {("lamb", 0.1, 1): log_of(3.0), ("slamb k=0.3", 0.1, 1): log_of(3.1), ("adamw", 0.1, 1): log_of(math.nan)}
    logs["one_bit_lamb", 0.1, 1] = [{**row, "sent_bytes": 0.0} for row in log_of(2.9)]
    report.write(logs, None, [1], None, ["end"], tmp_path / "ends.svg")
    text = (tmp_path / "ends.svg").read_text()
    assert "megabytes sent per rank" in text and "2: slamb k=0.3" in text and "adamw" not in text and "one_bit_lamb" not in text


def test_the_front_is_of_those_that_none_is_better_than_in_both():
    points = [(3.0, 1.0), (1.0, 3.0), (2.0, 3.0), (2.0, 2.0), (2.5, 2.0), (4.0, 1.0), (1.0, 3.0)]
    assert curves.front_of(points) == [(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)]
    assert curves.front_of([]) == []


def test_the_library_is_split_by_files(tmp_path, monkeypatch):
    for number in range(64):
        (tmp_path / f"m{number}.py").write_bytes(b"%03d" % number)
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "left_out.py").write_bytes(b"no")
    monkeypatch.setattr(train_lm.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    train, validation, _ = train_lm.read_library()
    files = [bytes(text.tolist()) for text in (train, validation)]
    names = [{text[i : i + 3] for i in range(0, len(text), 3)} for text in files]
    assert names[0].isdisjoint(names[1]) and names[0] | names[1] == {b"%03d" % number for number in range(64)}
    assert 0 < len(names[1]) < 16
    (tmp_path / "another.py").write_bytes(b"###")  # moves no other file
    more = {bytes(text.tolist()).replace(b"###", b"") for text in train_lm.read_library()[:2]}
    assert more == set(files)


@pytest.mark.parametrize(
    "texts, expected",
    [
        (["k=0.3", "local_steps=10"], {"k": 0.3, "local_steps": 10}),
        (["compressor=top_k", "moments=8-bit"], {"compressor": "top_k", "moments": "8-bit"}),
        (["betas=(0.9, 0.99)", "zero_aware=False"], {"betas": (0.9, 0.99), "zero_aware": False}),
    ],
)
def test_options_are_values_of_python(texts, expected):
    assert loop.options_of(texts) == expected


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("--method adam --lr 0.1", "invalid choice: 'adam'"),
        ("--method lamb --lr 0", "argument --lr: 0 is not a number above 0"),
        ("--method lamb --lr 0.1 --steps 0", "argument --steps: 0 is not an integer of at least 1"),
        ("--method lamb --lr 0.1 --warm-up 5", "argument --warm-up: 5 is not in [0, 1]"),
        ("--method lamb --lr abc", "argument --lr: abc is not a number above 0"),
        ("--method lamb --lr 0.1 --set lr=1", "--set: lr is not an option of its own"),
        ("--method lamb --lr 0.1 --set k", "--set: 'k' is not NAME=VALUE, such as k=0.3"),
        ("--method lamb --lr 0.1 --resume", "--resume and --checkpoints need --out"),
    ],
)
def test_wrong_arguments_are_named(arguments, message, capsys):
    with pytest.raises(SystemExit):
        loop.parse(train_lm.LanguageModel, arguments=arguments.split())
    assert message in capsys.readouterr().err


def test_rates_rise_and_fall():
    rates = [loop.part_of_rate(step, 10, 110) for step in range(110)]
    assert rates[:10] == [pytest.approx((step + 1) / 10) for step in range(10)]
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[60] == pytest.approx(0.5) and 0.0 < rates[-1] < 0.001


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    command = [sys.executable, str(FOLDER / "train_images.py"), *"--method lamb --lr 0.01 --out".split()]
    ended = subprocess.run([*command, str(tmp_path / "file")], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert "--out: " in ended.stderr and f"File exists: '{tmp_path / 'file'}'" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("name", ["train_lm.py", "train_images.py"])
def test_a_training_without_torchrun_says_how_to_start_it(name):
    command = [sys.executable, str(FOLDER / name), "--method", "lamb", "--lr", "0.01"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert "start it by torchrun: torchrun --nproc_per_node 4" in ended.stderr


# The second has other tables too.
@pytest.mark.parametrize(("name", "has_others"), [("measured/convergence.md", False), ("algorithms/slamb.md", True)])
def test_tables_of_the_documents_are_those_that_their_commands_print(name, has_others, monkeypatch, capsys):
    root = FOLDER.parent.parent
    document = (root / "docs" / name).read_text()
    lines = set(document.splitlines())
    commands = re.findall(r"^ {4}python3 examples/pytorch/compare.py ((?:report|times) (?:[^\n\\]|\\\n)*)$", document, re.MULTILINE)
    assert commands
    monkeypatch.chdir(root)
    printed = set()
    for command in commands:
        words = shlex.split(command.replace("\\\n", ""))
        for plot in {"--plot", "--ends"} & set(words):
            del words[words.index(plot) : words.index(plot) + 2]
        monkeypatch.setattr(sys, "argv", ["compare.py", *words])
        compare.work()
        tables = re.findall(r"^\|.*(?:\n\|.*)*", capsys.readouterr().out, re.MULTILINE)
        assert tables
        end = document.index(command)
        for table in tables:
            assert document.find(f"\n{table}\n", end) >= 0, f"the document does not have, in order behind {command}:\n{table}"
            end = document.index(f"\n{table}\n", end)
            printed |= set(table.splitlines())
    assert has_others or [line for line in lines if line.startswith("|") and line not in printed] == []
