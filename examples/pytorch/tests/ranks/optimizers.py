"""The optimizers and compressors of the checks, with settings by which a few steps reach every phase."""

import dataclasses
from typing import Any

from slamb.torch import AdamW, Lamb, OneBitAdam, OneBitLamb, Slamb, ZeroOneAdam

OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "adamw": (AdamW, {}),
    "adamw+int8": (AdamW, {"compressor": "int8"}),
    "lamb": (Lamb, {}),
    "lamb+random_k": (Lamb, {"compressor": "random_k", "k": 0.25}),
    "slamb": (Slamb, {"k": 0.25, "beta3": 0.8, "local_steps": 5, "dense_below": 40}),
    "slamb_by_differences": (
        Slamb,
        {"compressor": "random_k+int8", "k": 0.25, "parameter_sync": "four_levels", "dense_below": 40},
    ),
    "one_bit_adam": (OneBitAdam, {"warm_up_steps": 4}),
    "one_bit_lamb": (OneBitLamb, {"warm_up_steps": 4}),
    "zero_one_adam": (
        ZeroOneAdam,
        {
            "variance_freeze_step": 4,
            "variance_update_scaler": 2,
            "local_interval_scaler": 2,
            "local_interval_clipper": 4,
        },
    ),
}


def make(name: str, parameters: Any, **settings: Any) -> Any:
    kind, of_kind = OPTIMIZERS[name]
    return kind(parameters, **{"lr": 1e-3, **of_kind, **settings})


@dataclasses.dataclass
class Compressor:
    settings: dict[str, Any]
    distance: float  # of AdamW with it from AdamW without, in parts of the way that the latter has gone; see exchange.py
    bytes: float  # that it sends, in parts of what is sent without it


COMPRESSORS = {
    "none": Compressor({}, 0.0, 1.0),
    "bf16": Compressor({"compressor": "bf16"}, 2e-4, 0.75),
    "fp16": Compressor({"compressor": "fp16"}, 1e-4, 0.75),
    "int8": Compressor({"compressor": "int8"}, 1e-3, 0.42),
    "int4": Compressor({"compressor": "int4"}, 0.02, 0.22),
    "natural": Compressor({"compressor": "natural"}, 0.03, 0.42),
    "sign": Compressor({"compressor": "sign"}, 0.15, 0.11),
    "four_levels": Compressor({"compressor": "four_levels"}, 0.1, 0.14),
    "sign_per_tensor": Compressor({"compressor": "sign", "scales": "per_tensor"}, 0.15, 0.11),
    "random_k": Compressor({"compressor": "random_k", "k": 0.25}, 0.2, 0.26),
    "top_k": Compressor({"compressor": "top_k", "k": 0.25}, 0.2, 0.28),
    "random_k+int8": Compressor({"compressor": "random_k+int8", "k": 0.25}, 0.2, 0.22),
    "random_k+int4": Compressor({"compressor": "random_k+int4", "k": 0.25}, 0.2, 0.11),
}
