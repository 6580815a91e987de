"""Programs that wrap models and optimizers: DistributedDataParallel, and the trainers that use it. They average gradients, and
save the state of an optimizer on rank 0 alone."""

from __future__ import annotations

import functools
import importlib
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch.nn.parallel import DistributedDataParallel

from slamb.torch._optimizer import Optimizer

_Client = TypeVar("_Client")

_kept_local: "weakref.WeakSet[torch.nn.Module]" = weakref.WeakSet()


def keep_gradients_local(client: _Client) -> _Client:
    """Makes DistributedDataParallel leave the gradients of each rank as they are: the optimizers of this package exchange what
    they need. To be called before the first backward pass, on all ranks:

        model = slamb.torch.keep_gradients_local(DistributedDataParallel(model))
        slamb.torch.keep_gradients_local(accelerator.prepare(model))
        slamb.torch.keep_gradients_local(trainer)  # a Trainer of transformers or Lightning, before train() or fit()
        slamb.torch.keep_gradients_local(engine)   # what deepspeed.initialize() has returned

    The gradients are those that `no_sync()` leaves, and buffers are broadcast in the forward pass as before. A model without
    DistributedDataParallel, as on a single rank, has local gradients already, and stays as it is. A second call does nothing. A
    copy of a model needs a call of its own.

    Trainers that clip gradients do it by the norm of each rank's own gradient. On several ranks there is a RuntimeWarning then:
    switch it off, and give the optimizer `max_gradient_norm`.

    :param client: a model or a wrapper of it; a transformers.Trainer; a Trainer of Lightning; a deepspeed.DeepSpeedEngine
    :return: the client
    :raises ValueError: if its gradients cannot be local: a model in FullyShardedDataParallel, one that has a communication hook,
        or an engine of DeepSpeed with ZeRO, fp16 or bf16
    :raises TypeError: for another object
    """
    if hasattr(client, "enable_backward_allreduce"):
        _keep_local_in_engine(client)
    elif isinstance(client, torch.nn.Module):
        _keep_local_in_model(client)
    elif hasattr(client, "add_callback") and hasattr(client, "callback_handler"):
        if not _has_callback(client.callback_handler.callbacks, "KeepGradientsLocal"):
            client.add_callback(_class_of("KeepGradientsLocalOfTransformers")(client))
    elif hasattr(client, "strategy") and isinstance(getattr(client, "callbacks", None), list):
        if not _has_callback(client.callbacks, "KeepGradientsLocal"):
            modules = [kind.__module__ for kind in type(client).__mro__]
            is_old = not any(module.startswith("lightning.") for module in modules)
            is_old = is_old and any(module.startswith("pytorch_lightning.") for module in modules)
            client.callbacks.append(_class_of(f"KeepGradientsLocalOf{'PytorchLightning' if is_old else 'Lightning'}")())
    else:
        raise TypeError(
            f"slamb: keep_gradients_local() was given a {type(client).__name__}, but it must be a model, as wrapped by "
            f"DistributedDataParallel or accelerate's prepare(), a Trainer of transformers or Lightning, or the engine of "
            f"deepspeed.initialize()"
        )
    return client


def consolidate_on_save(client: Any) -> None:
    """Makes a trainer save the states of all ranks. To be called on all ranks.

    accelerate, the Trainer of transformers and DeepSpeed save `optimizer.state_dict()` on rank 0 alone, and load it on all ranks.
    But the compressed optimizers have another state on each rank. With this call, rank 0 collects all of them before each save:

        slamb.torch.consolidate_on_save(accelerator)  # an accelerate.Accelerator, before save_state()
        slamb.torch.consolidate_on_save(trainer)      # a transformers.Trainer, before train()
        slamb.torch.consolidate_on_save(engine)       # what deepspeed.initialize() has returned, before save_checkpoint()

    Lightning collects them without it. Rank 0 needs memory for the states of all ranks. Without it, `from_other_ranks=True` of the
    optimizer's constructor continues all ranks from rank 0's state, without compression errors.

    :raises TypeError: for another object
    """
    if hasattr(client, "register_save_state_pre_hook"):
        client.register_save_state_pre_hook(lambda models, weights, folder: _consolidate(client._optimizers))
    elif hasattr(client, "add_callback") and hasattr(client, "callback_handler"):
        # The call by which it saves, whatever has decided to: callbacks that come later can.
        _consolidate_before(client, "_save_checkpoint", lambda: [client.optimizer])
    elif hasattr(client, "enable_backward_allreduce"):
        _consolidate_before(client, "save_checkpoint", lambda: [client.optimizer])
    else:
        raise TypeError(
            f"slamb: consolidate_on_save() was given a {type(client).__name__}, but it must be an accelerate.Accelerator, a "
            f"transformers.Trainer or a deepspeed.DeepSpeedEngine; in other programs call optimizer.consolidate_state_dict() on "
            f"all ranks before a save"
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


def _consolidate_before(client: Any, call: str, optimizers_of: Callable[[], Iterable[Any]]) -> None:
    """Collects states before each call of a method of the client. All ranks make it."""
    save = getattr(client, call)
    if hasattr(save, "_consolidates"):
        return

    @functools.wraps(save)
    def save_of_all_ranks(*arguments: Any, **options: Any) -> Any:
        _consolidate(optimizers_of())
        return save(*arguments, **options)

    save_of_all_ranks._consolidates = True  # type: ignore[attr-defined]
    setattr(client, call, save_of_all_ranks)


# --------------------------------------------------------------------------------------------------------------- Local gradients


def _leave(_, bucket):  # type: ignore[no-untyped-def] # DistributedDataParallel takes annotations only if they are not texts
    """A communication hook that sends nothing."""
    if isinstance(bucket, tuple):  # a gradient and its parameter, from the reducer in Python, which waits for nothing
        return None
    done: "torch.futures.Future[torch.Tensor]" = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def _keep_local_in_model(model: torch.nn.Module) -> None:
    if any(type(one).__name__ == "FullyShardedDataParallel" for one in model.modules()):
        raise ValueError(
            "slamb: keep_gradients_local() was given a model in FullyShardedDataParallel, which must reduce gradients over its "
            "ranks; give the optimizer process_group and shard_group in its place (docs/how-to/sharded.md)"
        )
    for wrapped in model.modules():  # within wrappers of others, or parts of a model
        if not isinstance(wrapped, DistributedDataParallel) or wrapped in _kept_local:
            continue
        try:
            wrapped.register_comm_hook(None, _leave)
        except RuntimeError as failure:
            raise ValueError(
                f"slamb: keep_gradients_local() was given a model that has a communication hook already, which averages gradients; "
                f"leave that hook out ({failure})"
            ) from None
        _kept_local.add(wrapped)


def _warn_of_clipping(client: str, setting: str, norm: Any, ranks: int) -> None:
    if ranks > 1 and norm:
        warnings.warn(
            f"slamb: {client} clips the gradients of each of {ranks} ranks by the norm of its own ({setting} = {norm}), which is "
            f"not the norm of their mean; switch this off, and give the optimizer max_gradient_norm={norm}",
            RuntimeWarning,
            stacklevel=2,
        )


def _has_callback(callbacks: Iterable[Any], name: str) -> bool:
    return any(type(one).__module__ == __name__ and type(one).__name__.startswith(name) for one in callbacks)


def _of_transformers(base: Any) -> Any:
    class Callback(base):  # type: ignore[misc, unused-ignore]
        """The Trainer wraps the model when training begins."""

        def __init__(self, trainer: Any) -> None:
            self._trainer = trainer

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            keep_gradients_local(self._trainer.model_wrapped)  # an engine of DeepSpeed too
            _warn_of_clipping("the Trainer", "max_grad_norm", args.max_grad_norm, args.world_size)

    return Callback


def _of_lightning(base: Any) -> Any:
    class Callback(base):  # type: ignore[misc, unused-ignore]
        """Lightning wraps the model in fit(). It registers the ddp_comm_hook of its strategy on GPUs only."""

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            keep_gradients_local(trainer.strategy.model)  # an engine of DeepSpeed too
            _warn_of_clipping("Lightning", "gradient_clip_val", trainer.gradient_clip_val, trainer.world_size)

    return Callback


# Callbacks of packages that are imported when they are used: the name of the class, the package, its base, and what makes it.
_CALLBACKS: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "KeepGradientsLocalOfTransformers": ("transformers", "TrainerCallback", _of_transformers),
    "KeepGradientsLocalOfLightning": ("lightning.pytorch.callbacks", "Callback", _of_lightning),
    "KeepGradientsLocalOfPytorchLightning": ("pytorch_lightning.callbacks", "Callback", _of_lightning),
}


@functools.lru_cache(maxsize=None)
def _class_of(name: str) -> Any:
    package, base, make = _CALLBACKS[name]
    made = make(getattr(importlib.import_module(package), base))
    made.__name__ = made.__qualname__ = name
    return made


def __getattr__(name: str) -> Any:  # a pickled callback is found by its name
    if name in _CALLBACKS:
        return _class_of(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _keep_local_in_engine(engine: Any) -> None:
    if hasattr(engine, "pipeline_enable_backward_allreduce"):
        raise ValueError(
            "slamb: keep_gradients_local() was given a PipelineEngine of DeepSpeed, which reduces gradients of tied parameters itself; "
            "only its other engine is supported"
        )
    stage = engine.zero_optimization_stage()
    if stage > 0:
        raise ValueError(
            f"slamb: keep_gradients_local() was given an engine of DeepSpeed with ZeRO stage {stage}, which must reduce gradients to "
            f"partition the state; use stage 0, or fully_shard in place of ZeRO (docs/how-to/sharded.md)"
        )
    for name, is_enabled in (("fp16", engine.fp16_enabled()), ("bf16", engine.bfloat16_enabled())):
        if is_enabled:
            raise ValueError(
                f"slamb: keep_gradients_local() was given an engine of DeepSpeed with {name}, which keeps the parameters in copies "
                f"of its own; leave {name} out of the configuration, and use torch_autocast, or convert the model before "
                f"deepspeed.initialize()"
            )
    engine.enable_backward_allreduce = False
    ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    _warn_of_clipping("DeepSpeed", "gradient_clipping", engine.gradient_clipping(), ranks)
