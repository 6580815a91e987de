"""The compiled calls refuse arrays that do not fit their settings, before they read or write."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slamb.jax._library import sizes_of


def settings(*, compressor="int4", ranks=2, tensors=(30, 5), recipe="lamb"):
    lines = [f"recipe {recipe}", f"compressor {compressor}", f"ranks {ranks}"]
    return "\n".join(lines + [f"tensor {size} 0.0 1 1" for size in tensors])


def call(target, operands, results, text, aliases=None):
    results = [jax.ShapeDtypeStruct(np.shape(r), np.asarray(r).dtype) for r in results]
    attributes = {"settings": text}
    run = jax.ffi.ffi_call(target, results, input_output_aliases=aliases)
    return jax.block_until_ready(jax.jit(lambda *its: run(*its, **attributes))(*operands))


def refuses(message):
    return pytest.raises(jax.errors.JaxRuntimeError, match=re.escape(message))


def floats(size):
    return jnp.zeros(size, jnp.float32)


ZERO = jnp.int32(0)
TENSORS = [floats(30), floats(5)]


class Arrays:
    """The arrays of a call with the settings above."""

    def __init__(self):
        self.text = settings()
        self.sizes = sizes_of(self.text)
        self.messages = jnp.zeros((2, self.sizes.message), jnp.uint8)
        self.state = [ZERO, ZERO, ZERO, floats(self.sizes.state), floats(self.sizes.state), floats(0), floats(0)]
        self.errors = [floats(self.sizes.state), floats(self.sizes.codes)]

    def encode(self, gradients=TENSORS, messages=None, text=None):
        operands = [ZERO, ZERO, ZERO, self.state[3], floats(0), self.errors[0], *gradients]
        messages = self.messages if messages is None else messages
        return call("slamb_encode", operands, [messages, floats(self.sizes.dense)], text or self.text)

    def average(self, messages=None):
        operands = [ZERO, ZERO, self.messages if messages is None else messages, self.errors[1]]
        return call("slamb_average", operands, [self.messages[0], floats(self.sizes.codes)], self.text)

    def update(self, params=TENSORS, gradients=TENSORS, aliased=True):
        given = [self.messages, self.messages, self.messages[0], floats(self.sizes.dense), floats(self.sizes.codes)]
        lasting = [*self.state, *self.errors, *params]
        results = [floats(self.sizes.mean), *lasting]
        aliases = {2 + len(given) + i: 1 + i for i in range(len(lasting))} if aliased else None
        return call("slamb_update", [ZERO, jnp.float32(0.1), *given, *lasting, *gradients], results, self.text, aliases)


def update_dense(params=TENSORS, gradients=TENSORS, aliased=True):
    text = settings(compressor="none", ranks=1)
    size = sizes_of(text).state
    lasting = [ZERO, ZERO, ZERO, floats(size), floats(size), floats(0), floats(0), *params]
    aliases = {2 + i: i for i in range(len(lasting))} if aliased else None
    return call("slamb_update_dense", [ZERO, jnp.float32(0.1), *lasting, *gradients], lasting, text, aliases)


def test_calls_take_what_fits():
    assert int(Arrays().update()[1]) == 1 and int(update_dense()[0]) == 1
    Arrays().encode()
    Arrays().average()


def test_tensors_of_other_sizes():
    for short in (lambda: Arrays().encode([floats(30), floats(4)]), lambda: Arrays().update(gradients=[floats(30), floats(4)])):
        with refuses("the array of tensor 1 has 4 elements in place of 5"):
            short()
    for short in (lambda: Arrays().update([floats(3), floats(5)]), lambda: update_dense([floats(3), floats(5)])):
        with refuses("the array of tensor 0 has 3 elements in place of 30"):
            short()


def test_another_number_of_tensors():
    with refuses("there are 0 gradients in place of 2"):
        Arrays().encode([])
    for run in (lambda: Arrays().update(gradients=TENSORS[:1]), lambda: update_dense(gradients=TENSORS[:1])):
        with refuses("there are 3 parameters and gradients in place of 4"):
            run()
    with refuses("there are 0 parameters and gradients in place of 4"):
        update_dense([], [])


def test_messages_of_other_ranks():
    arrays = Arrays()
    size = arrays.sizes.message
    with refuses(f"the array of messages to send has {size} elements in place of {2 * size}"):
        arrays.encode(messages=arrays.messages[:1])
    with refuses(f"the array of received messages has {size} elements in place of {2 * size}"):
        arrays.average(arrays.messages[:1])


def test_results_that_are_not_in_place():
    for run in (lambda: Arrays().update(aliased=False), lambda: update_dense(aliased=False)):
        with refuses("is not in the memory of the argument; the call must have input_output_aliases"):
            run()


def test_a_rank_that_is_none():
    operands = [jnp.int32(2), ZERO, Arrays().messages, Arrays().errors[1]]
    with refuses("rank 2 is none of the 2 ranks of this optimizer"):
        call("slamb_average", operands, [Arrays().messages[0], floats(Arrays().sizes.codes)], settings())


@pytest.mark.parametrize("rate", [np.nan, np.inf, -1.0])
def test_a_learning_rate_that_is_none(rate):
    lasting = [ZERO, ZERO, ZERO, floats(48), floats(48), floats(0), floats(0), *TENSORS]
    text = settings(compressor="none", ranks=1)
    with refuses(f"the learning rate is {rate:f}, but it must be a finite number >= 0"):
        aliases = {2 + i: i for i in range(len(lasting))}
        call("slamb_update_dense", [ZERO, jnp.float32(rate), *lasting, *TENSORS], lasting, text, aliases)
