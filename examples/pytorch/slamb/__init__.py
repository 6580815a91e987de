"""Communication-efficient large-batch optimizers: AdamW, LAMB, SLAMB, 1-bit Adam, 1-bit LAMB, 0/1 Adam.

`slamb.torch` has them as optimizers of PyTorch.
"""

from slamb._load import native as _native

__version__: str = _native.version
