#!/usr/bin/env python3
"""Writes the files that train_gpt2.c of llm.c reads, for a small GPT-2 over bytes, into a folder.

    make_files.py FOLDER [--layers 4] [--heads 4] [--channels 64] [--positions 64]

- gpt2_124M.bin: a model with random parameters, of the given size and not of 124 million.
- gpt2_tokenizer.bin: 256 tokens, the bytes.
- dev/data/tinyshakespeare/tiny_shakespeare_{train,val}.bin: the source files of Python's library, not Shakespeare; each tenth is
  for validation.
"""
import argparse
import array
import pathlib
import random
import sys
import sysconfig

VOCABULARY = 256  # which is a multiple of 128, so that rows of wte need no padding


def write(path, magic, version, numbers, data):
    """A file of llm.c: 256 integers of 32 bits, then the data."""
    header = [magic, version, *numbers]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(array.array("i", header + [0] * (256 - len(header))).tobytes() + data)


def parameters(layers, channels, positions):
    """The tensors in the order of the file: as GPT-2 begins, with the standard deviation 0.02, less before each residual."""
    draw = random.Random(1)
    normal = lambda count, deviation=0.02: [draw.gauss(0.0, deviation) for _ in range(count)]
    c, before_residual = channels, 0.02 / (2 * layers) ** 0.5
    return array.array("f", sum([
        normal(VOCABULARY * c), normal(positions * c),                        # wte, wpe
        [1.0] * (layers * c), [0.0] * (layers * c),                           # ln1w, ln1b
        normal(layers * 3 * c * c), [0.0] * (layers * 3 * c),                 # qkvw, qkvb
        normal(layers * c * c, before_residual), [0.0] * (layers * c),        # attprojw, attprojb
        [1.0] * (layers * c), [0.0] * (layers * c),                           # ln2w, ln2b
        normal(layers * 4 * c * c), [0.0] * (layers * 4 * c),                 # fcw, fcb
        normal(layers * 4 * c * c, before_residual), [0.0] * (layers * c),    # fcprojw, fcprojb
        [1.0] * c, [0.0] * c], []))                                           # lnfw, lnfb


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=pathlib.Path)
    for name, default in (("layers", 4), ("heads", 4), ("channels", 64), ("positions", 64)):
        options.add_argument(f"--{name}", type=int, default=default)
    given = options.parse_args()
    if min(given.layers, given.heads, given.channels, given.positions) < 1 or given.channels % given.heads:
        options.error("sizes are 1 or more, and --heads divides --channels")

    model = parameters(given.layers, given.channels, given.positions)
    write(given.folder / "gpt2_124M.bin", 20240326, 3,
          [given.positions, VOCABULARY, given.layers, given.heads, given.channels, VOCABULARY], model.tobytes())
    write(given.folder / "gpt2_tokenizer.bin", 20240328, 2, [VOCABULARY, 0], b"".join(bytes([1, token]) for token in range(VOCABULARY)))

    library = pathlib.Path(sysconfig.get_path("stdlib"))
    texts = [path.read_bytes() for path in sorted(library.glob("*.py"))]
    counts = []
    for name, text in (("val", b"".join(texts[9::10])), ("train", b"".join(t for i, t in enumerate(texts) if i % 10 != 9))):
        tokens = array.array("H", list(text))  # bytes alone would be read in pairs
        write(given.folder / f"dev/data/tinyshakespeare/tiny_shakespeare_{name}.bin", 20240520, 1, [len(tokens)], tokens.tobytes())
        counts.append(f"{len(tokens)} tokens in {name}")
    print(f"{len(model)} parameters, {', '.join(counts)}")


if __name__ == "__main__":
    sys.exit(main())
