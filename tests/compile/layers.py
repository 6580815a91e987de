#!/usr/bin/env python3
"""The folders of include/slamb, from the lowest to the highest: a header includes those of its own folder and of lower ones.

    layers.py INCLUDE_DIR     lists every include that points up, and fails if there is one

Folders on one line know nothing of each other.
"""
import pathlib
import re
import sys

LAYERS = [
    ["core"],
    ["compressor", "error_feedback", "trust_ratio", "schedule", "detail/runtime"],
    ["parameter_sync"],
    ["communicator"],
    ["detail/ranks"],
    ["detail/pass"],
    ["detail/state"],
    ["detail/kernel"],
    ["backend/host", "backend/cuda", "backend/plan"],
    ["backend"],
    ["communicator/cuda", "detail/exchange"],
    ["optimizer"],
    ["plan"],
    ["impl"],  # definitions of functions that are no templates, which headers include at their ends
    [""],  # what users include
    ["testing"],
]


def room_of(header):
    """X/detail is a part of X, and impl/X of impl."""
    return re.sub("^impl/.*", "impl", re.sub("/detail$", "", header.rpartition("/")[0]))


def arrows_up(root):
    level = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
    headers = sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())
    found = [] if headers else [f"{root}: no headers"]
    for header in headers:
        room = room_of(header)
        if room not in level:
            found.append(f"{header}: its folder is in no layer")
            continue
        for included in re.findall(r'^#\s*include "slamb/([^"]+)"', (root / header).read_text(encoding="utf-8"), flags=re.M):
            if included.endswith(".ipp"):
                continue
            other = room_of(included)
            if other != room and not (other in level and level[other] < level[room]):
                found.append(f"{header} includes {included}")
    return found


if __name__ == "__main__":
    wrong = arrows_up(pathlib.Path(sys.argv[1]) / "slamb")
    print("\n".join(wrong) or "every include points down")
    sys.exit(1 if wrong else 0)
