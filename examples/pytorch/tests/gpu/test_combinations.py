"""The module for GPUs has what the host has. Needs the module, and no GPU."""

import pytest

from slamb import _native
from slamb._load import module_for

RECIPES = ("mean", "adamw", "lamb", "slamb", "one_bit_adam", "one_bit_lamb", "zero_one_adam")


@pytest.mark.parametrize("moments", ["float32", "bf16-momentum", "8-bit"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_same_compressors_on_both(recipe, moments):
    try:
        module = module_for("cuda")
    except ValueError as missing:
        pytest.skip(str(missing))
    assert module.compressors(recipe, moments) == _native.compressors(recipe, moments)
    assert moments != "float32" or module.compressors(recipe, moments)
