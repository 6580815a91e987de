"""Steps that are captured into a CUDA graph, and later replayed without a call of Python."""

from __future__ import annotations

from typing import Optional

import torch


def is_captured(stream: Optional[torch.cuda.Stream]) -> bool:
    """True while work is captured into a graph instead of executed.

    :param stream: that of the optimizer; None: its parameters are in host memory, and nothing is captured
    """
    return stream is not None and bool(torch.cuda.is_current_stream_capturing())  # type: ignore[no-untyped-call, unused-ignore]


def refusal(call: str, because: str) -> RuntimeError:
    """
    :param because: continues the sentence
    """
    return RuntimeError(f"slamb: {call}() cannot be captured into a CUDA graph, because {because}")
