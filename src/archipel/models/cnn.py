# SPDX-License-Identifier: Apache-2.0
"""Convolutional networks: images `[b, channels, height, width]` or `[b, height, width]`."""

from __future__ import annotations

from torch import nn

from archipel.errors import ArchipelError


def cnn(shape: tuple[int, ...], outputs: int, hidden: int = 512) -> nn.Module:
    """Return McMahan et al.'s CNN (arXiv 1602.05629): `[b, c, h, w] -> [b, outputs]`.

    Its padding keeps the size of an image, so that MNIST gives the paper's 1,663,370 weights;
    without padding there would be 582,026.
    """
    first, channels, height, width = _image("cnn", shape, smallest=4)
    return nn.Sequential(
        *first,
        nn.Conv2d(channels, 32, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), hidden),
        nn.ReLU(),
        nn.Linear(hidden, outputs),
    )


def lenet(shape: tuple[int, ...], outputs: int, kernels: int = 16) -> nn.Module:
    """Return the LeNet of pFedHN (arXiv 2103.04628) and PeFLL: `[b, c, h, w] -> [b, outputs]`."""
    first, channels, height, width = _image("lenet", shape, smallest=16)
    across = [((size - 4) // 2 - 4) // 2 for size in (height, width)]
    return nn.Sequential(
        *first,
        nn.Conv2d(channels, kernels, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(kernels, 2 * kernels, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * kernels * across[0] * across[1], 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, outputs),
    )


def _image(
    name: str, shape: tuple[int, ...], smallest: int
) -> tuple[list[nn.Module], int, int, int]:
    """Return the layer that adds a missing channel, and (channels, height, width)."""
    if len(shape) not in (2, 3):
        raise ArchipelError(
            f"the model '{name}' reads images [channels, height, width] but examples have shape "
            f"{list(shape)}: use 'mlp' or 'logistic'."
        )
    height, width = shape[-2:]
    if min(height, width) < smallest:
        raise ArchipelError(
            f"the model '{name}' needs images of at least {smallest}x{smallest} but examples are "
            f"{height}x{width}: use 'mlp', or pad the images."
        )
    if len(shape) == 2:
        return [nn.Unflatten(1, (1, height))], 1, height, width
    return [], shape[0], height, width
