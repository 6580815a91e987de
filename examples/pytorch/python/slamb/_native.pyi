"""
Optimizers over tensors that are given as addresses. slamb.torch is the interface for users.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any


version: str = '0.1.0'

class Tensor:
    """
    A tensor's description: number of elements, type, dimensions, and options.
    """

    def __init__(self, size: int, type: str, dimensions: int, weight_decay: float, group: int, adapt: bool, compress: bool, shard: int = -1, whole_size: int = 0) -> None:
        """
        size: of this rank's part; dimensions and whole_size: of the whole tensor, 0 if its size is not known. shard: the number of the part, equal on ranks that hold the same elements, or -1 if no other rank of the shard group holds them.
        """

class Optimizer:
    """An optimizer over tensors that the caller keeps alive."""

    def __init__(self, recipe: str, compressor: str, moments: str, tensors: Sequence[Tensor], data: Sequence[int], gradients: Sequence[int], masters: Sequence[int], settings: Mapping[str, bool | int | float | str], threads: int, rounding_seed: int, ranks: object | None, shards: object | None, stream: int) -> None:
        """
        Collective, if there are several ranks. Addresses: 0 for none. ranks: None for one; an object with rank, size, all_reduce_sum, broadcast, all_gather and all_to_all, of memory of the host; on a GPU also the address of an ncclComm_t. shards: the ranks that hold a model together, in the same form. stream: the address of a cudaStream_t; on the host 0.
        """

    def step(self, rates: Sequence[float]) -> None:
        """One step, with a learning rate for each group."""

    def step_at(self, rates: int) -> None:
        """
        One step, with learning rates for each group that are read at this address, as float64, when it runs.
        """

    def set_gradient_types(self, types: Sequence[str]) -> None:
        """The types of the gradients whose addresses are set next."""

    def set_gradients(self, gradients: Sequence[int]) -> None:
        """The addresses of all gradients; 0 for none."""

    def set_parameters(self, data: Sequence[int], gradients: Sequence[int]) -> None:
        """The addresses of all parameters and gradients."""

    def set_gradient_scaling(self, loss_scale: int, found_inf: int) -> None:
        """Addresses of floats that following steps read; 0 for none."""

    def set_options(self, beta1: float, beta2: float, epsilon: float, weight_decay: Sequence[float]) -> None:
        """Changes options of following steps; weight_decay: of each tensor."""

    def state_bytes(self, with_parameters: bool, whole_tensors: bool = False) -> int:
        """
        The size of the state. whole_tensors: of whole tensors instead of this rank's shards, at the first rank of the shard group; 0 at the others. Collective over the shard group then.
        """

    def save_state(self, to: int, bytes: int, with_parameters: bool, whole_tensors: bool = False) -> None:
        """Writes the state to memory. whole_tensors: as of state_bytes."""

    def load_state(self, source: int, bytes: int, from_other_ranks: bool, whole_tensors: bool = False) -> None:
        """
        Continues from a state in memory. whole_tensors: it is that of whole tensors.
        """

    def moments(self, tensor: int) -> tuple[Any, Any] | None:
        """
        The momentum and the variance of a tensor, as arrays in the optimizer's memory, which they keep alive. None if they are not float32.
        """

    def fresh_variance(self, tensor: int) -> Any | None:
        """
        The fresh variance of a tensor with 1-bit LAMB, as `moments`; None with the others.
        """

    def set_steps(self, taken: int, warm_up: int = 0, ratios: Sequence[tuple[float, float, float]] = [], intervals: Sequence[int] = []) -> None:
        """
        Continues as after so many steps. All ranks must. warm_up: the variance was frozen after so many; 0: its schedule decides. ratios: mean ratio, factor and signal scale of each tensor of 1-bit LAMB. intervals: of 0/1 Adam: of the variance, its refreshes, of local steps, and local steps.
        """

    def broadcast_parameters(self, root: int) -> None:
        """Gives all ranks the parameters of one. Collective."""

    def synchronize_parameters(self) -> None:
        """
        Replaces parameters that differ between ranks by their mean. Collective.
        """

    def compare_ranks(self) -> None:
        """Throws if ranks have diverged. Collective."""

    def with_averaged_parameters(self, evaluate: Callable[[], object]) -> None:
        """
        Calls evaluate() while parameters are their mean over ranks. Collective.
        """

    @property
    def steps(self) -> int:
        """The number of steps taken."""

    @property
    def skipped_steps(self) -> int:
        """The number of steps that were skipped."""

    def statistics(self, with_norms: bool) -> dict[str, Any]:
        """Steps, phase and traffic."""

    def memory(self) -> dict[str, int]:
        """Bytes by purpose."""

class TensorLayouts:
    """Types, shapes and the device of tensors."""

    @staticmethod
    def of(table: object, tensors: list[Any]) -> TensorLayouts | None:
        """
        Of tensors of a framework that has this table for their exchange, DLPackExchangeAPI in a capsule. None if it cannot describe them.
        """

    def addresses(self, tensors: list[Any]) -> list[int] | None:
        """
        The addresses of tensors, 0 for None. None if one has another type, shape or device, or is not contiguous.
        """

def compressors(recipe: str, moments: str = 'float32') -> list[str]:
    """The compressors with which a recipe can be made."""

def hold(dictionaries: list[Any], values: list[Any]) -> bool:
    """
    True if these dictionaries, one after another, have these very objects as values.
    """

def hash_of_gradients(arrays: Sequence[tuple[int, int, str]]) -> int:
    """
    A hash of arrays, each given by its address, its number of elements and its type. 0 if a number is not finite, or each array has the same number everywhere.
    """
