# SPDX-License-Identifier: Apache-2.0
"""FedJAX 0.0.17 on jax 0.4.13: its federated_averaging with the default jit backend.

The networks are those of networks.py, from the same initial weights. Every shape a batch can have
is compiled before the clock starts.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import fed_avg

from pace import Pace, arguments
from workloads import CACHE, Workload, cohort, load, probe

Parameters = dict[str, jax.Array]


def _linear(p: Parameters, prefix: str, x: jax.Array) -> jax.Array:
    return x @ p[prefix + "weight"].T + p[prefix + "bias"]


def _mlp(p: Parameters, x: jax.Array) -> jax.Array:
    x = jax.nn.relu(_linear(p, "0.", x))
    x = jax.nn.relu(_linear(p, "2.", x))
    return _linear(p, "4.", x)


def _conv_pool(p: Parameters, prefix: str, x: jax.Array) -> jax.Array:
    """[b, h, w, c] -> [b, h / 2, w / 2, c']: channels last, which XLA prefers on a CPU."""
    kernel = jnp.transpose(p[prefix + "weight"], (2, 3, 1, 0))
    x = jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    x = jax.nn.relu(x + p[prefix + "bias"])
    b, h, w, c = x.shape
    return x.reshape(b, h // 2, 2, w // 2, 2, c).max((2, 4))


def _cnn(p: Parameters, x: jax.Array) -> jax.Array:
    x = _conv_pool(p, "conv1.", x.reshape(-1, 28, 28, 1))
    x = _conv_pool(p, "conv2.", x)
    x = jnp.transpose(x, (0, 3, 1, 2)).reshape(x.shape[0], -1)  # torch's order of features
    return _linear(p, "linear2.", jax.nn.relu(_linear(p, "linear1.", x)))


def _lstm_layer(p: Parameters, layer: int, x: jax.Array) -> jax.Array:
    """[T, b, d] -> [T, b, h]; the input's product is taken for all positions at once."""
    bias = p[f"lstm.bias_ih_l{layer}"] + p[f"lstm.bias_hh_l{layer}"]
    inputs = x @ p[f"lstm.weight_ih_l{layer}"].T + bias
    recurrent = p[f"lstm.weight_hh_l{layer}"].T

    def step(
        state: tuple[jax.Array, jax.Array], u: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        h, c = state
        i, f, g, o = jnp.split(u + h @ recurrent, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((x.shape[1], recurrent.shape[0]))
    return jax.lax.scan(step, (zeros, zeros), inputs)[1]


def _char_lstm(p: Parameters, x: jax.Array) -> jax.Array:
    x = jnp.swapaxes(p["embedding.weight"][x], 0, 1)
    x = _lstm_layer(p, 1, _lstm_layer(p, 0, x))
    return jnp.swapaxes(_linear(p, "output.", x), 0, 1)


FORWARD = {"W1": lambda p, x: _linear(p, "", x), "W2": _mlp, "W3": _cnn, "W4": _char_lstm}


class Federated:
    """FedJAX's algorithm, its state and its parties."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        arrays = load(workload)
        x, y = np.asarray(arrays.x), np.asarray(arrays.y).astype(np.int32)
        if workload.text:
            x = x.astype(np.int32)
        bounds = pairwise(arrays.offsets)
        self.parties = [fedjax.ClientDataset({"x": x[a:b], "y": y[a:b]}) for a, b in bounds]
        self.sizes = arrays.sizes
        self.algorithm = fed_avg.federated_averaging(
            jax.jit(jax.grad(self.loss)),
            fedjax.optimizers.sgd(workload.lr),
            fedjax.optimizers.sgd(1.0),
            fedjax.ShuffleRepeatBatchHParams(batch_size=workload.batch_size, num_epochs=1),
        )
        weights = np.load(CACHE / "data" / f"{workload.name}_weights.npz")
        self.state = self.algorithm.init({k: jnp.asarray(v) for k, v in weights.items()})
        self.key = jax.random.PRNGKey(0)

    def loss(self, p: Parameters, batch: dict[str, jax.Array], _: jax.Array) -> jax.Array:
        logits = jax.nn.log_softmax(FORWARD[self.workload.name](p, batch["x"]))
        return -jnp.mean(jnp.take_along_axis(logits, batch["y"][..., None], axis=-1))

    def apply(self, t: int, parties: Iterable[int]) -> object:
        keys = jax.random.split(jax.random.fold_in(self.key, t), self.workload.cohort)
        sampled = [
            (str(k).encode(), self.parties[k], key) for k, key in zip(parties, keys, strict=False)
        ]
        state, _ = self.algorithm.apply(self.state, sampled)
        return jax.block_until_ready(state)

    def compile(self) -> None:
        """Train one party for each size the last batch can have, and forget the result."""
        _, one_each = np.unique(self.sizes % self.workload.batch_size, return_index=True)
        self.apply(0, [int(k) for k in one_each])

    def probe_loss(self) -> float:
        x, y = probe(self.workload)
        batch = {"x": jnp.asarray(x), "y": jnp.asarray(y)}
        return float(self.loss(self.state.params, batch, self.key))


def main() -> None:
    pace = Pace(arguments())
    federated = Federated(pace.workload)
    federated.compile()
    for t in pace.rounds(federated.probe_loss):
        federated.state = federated.apply(t, cohort(pace.workload, t))


if __name__ == "__main__":
    main()
