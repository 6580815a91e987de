"""Communication-efficient large-batch optimizers: AdamW, LAMB, SLAMB, 1-bit Adam, 1-bit LAMB, 0/1 Adam.

`slamb.torch` has them as optimizers of PyTorch.
"""

import slamb._load as _load

__version__: str = _load.native.version
