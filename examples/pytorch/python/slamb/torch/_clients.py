"""Programs that save the state of an optimizer on rank 0 alone, and load it on all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from slamb.torch._optimizer import Optimizer


def consolidate_on_save(client: Any) -> None:
    """Makes accelerate or the Trainer of transformers save the states of all ranks.

    Both save `optimizer.state_dict()` on rank 0 alone, and load it on all ranks. But the compressed optimizers have another state
    on each rank. With this call, rank 0 collects all of them before each save:

        slamb.torch.consolidate_on_save(accelerator)  # an accelerate.Accelerator, before save_state()
        slamb.torch.consolidate_on_save(trainer)      # a transformers.Trainer, before train()

    Rank 0 needs memory for the states of all ranks. Without it, `from_other_ranks=True` of the optimizer's constructor continues
    all ranks from rank 0's state, without compression errors.

    :raises TypeError: for another object
    """
    if hasattr(client, "register_save_state_pre_hook"):
        client.register_save_state_pre_hook(lambda models, weights, folder: _consolidate(client._optimizers))
    elif hasattr(client, "add_callback") and hasattr(client, "callback_handler"):
        client.add_callback(_trainer_callback())
    else:
        raise TypeError(
            f"slamb: consolidate_on_save() was given a {type(client).__name__}, but it must be an accelerate.Accelerator or a "
            f"transformers.Trainer; in other programs call optimizer.consolidate_state_dict() on all ranks before a save"
        )


def _own(optimizers: Iterable[Any]) -> Iterator[Optimizer]:
    """Those of this library, without their wrappers."""
    for one in optimizers:
        while not isinstance(one, Optimizer) and isinstance(getattr(one, "optimizer", None), torch.optim.Optimizer):
            one = one.optimizer
        if isinstance(one, Optimizer):
            yield one


def _consolidate(optimizers: Iterable[Any]) -> None:
    for one in _own(optimizers):
        one.consolidate_state_dict()


def _trainer_callback() -> Any:
    from transformers import TrainerCallback  # type: ignore[import-not-found, unused-ignore]

    class ConsolidateCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
        """Collects the states of all ranks when the Trainer is about to save. It comes after the callback that decides it."""

        def on_step_end(self, args: Any, state: Any, control: Any, **of_trainer: Any) -> None:
            if control.should_save:
                _consolidate([of_trainer["optimizer"]])

        on_epoch_end = on_step_end

        def on_evaluate(self, args: Any, state: Any, control: Any, **of_trainer: Any) -> None:
            if str(getattr(args.save_strategy, "value", args.save_strategy)) == "best":  # decided after this call
                _consolidate([of_trainer["optimizer"]])

    return ConsolidateCallback()
