# SPDX-License-Identifier: Apache-2.0
"""Features that were learnt from nobody: wavelets of two scales, moduli, local means.

Bruna, Mallat, PAMI 2013, https://arxiv.org/abs/1203.1513; under DP-SGD: Tramer, Boneh, ICLR 2021,
https://arxiv.org/abs/2011.11660. J = 2 scales and L = 8 angles give 81 channels of 7 x 7. Each
picture's channels are normalised by themselves, in groups (Wu, He, ECCV 2018), so that nothing is
computed from two pictures at once and the features cost no privacy.

Departures: borders are padded with zeros, which the pictures have there already.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from math import pi
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.fft import fft2, ifft2
from torch.nn.functional import group_norm, pad

SIDE, MARGIN = 36, 4  # of a padded picture of 28 x 28
ANGLES, GROUPS, CHANNELS = 8, 27, 81
FEATURES = CHANNELS * 49


def _gabor(sigma: float, angle: float, frequency: float, slant: float) -> Tensor:
    """A wave under a bell, periodic on the padded picture, `[36, 36]`."""
    at = torch.arange(SIDE, dtype=torch.float64)
    c, s = np.cos(angle), np.sin(angle)
    found = torch.zeros(SIDE, SIDE, dtype=torch.complex128)
    for dy, dx in product((-2, -1, 0, 1, 2), repeat=2):
        y, x = (at + dy * SIDE)[:, None], (at + dx * SIDE)[None]
        along, across = c * x + s * y, -s * x + c * y
        bell = torch.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2))
        found += bell * torch.exp(1j * frequency * along)
    return found * slant / (2 * pi * sigma**2)


def _morlet(j: int, angle: float) -> Tensor:
    """A wavelet in frequencies, whose mean is 0."""
    sigma, frequency, slant = 0.8 * 2**j, 0.75 * pi / 2**j, 4 / ANGLES
    wave, bell = _gabor(sigma, angle, frequency, slant), _gabor(sigma, angle, 0.0, slant)
    return fft2(wave - bell * (wave.sum() / bell.sum())).to(torch.complex64)


@cache
def _waves(j: int) -> Tensor:
    turns = [pi * k / ANGLES for k in range(ANGLES)]
    return torch.stack([_morlet(j, angle) for angle in turns])


@cache
def _window() -> Tensor:
    return fft2(_gabor(1.6, 0.0, 0.0, 1.0)).real.to(torch.float32)


def _folded(x: Tensor, step: int) -> Tensor:
    """Every `step`-th pixel, from frequencies to frequencies."""
    small = x.shape[-1] // step
    return x.unflatten(-1, (step, small)).unflatten(-3, (step, small)).mean(dim=(-4, -2))


def scattered(pictures: Tensor) -> Tensor:
    """`[b, 1, 28, 28] -> [b, 81 * 7 * 7]`, group by group of mean 0 and deviation 1."""
    low, fine, coarse = _window(), _waves(0), _waves(1)
    low_half = _folded(low, 2) * 4

    def smooth(x: Tensor, window: Tensor, step: int) -> Tensor:
        return ifft2(_folded(x * window, step)).real[..., 1:8, 1:8]

    x = fft2(pad(pictures.to(torch.float32), [MARGIN] * 4))  # [b, 1, 36, 36]
    first = fft2(ifft2(x * fine).abs())  # [b, 8, 36, 36]
    second = fft2(ifft2(_folded(x * coarse, 2)).abs())  # [b, 8, 18, 18]
    pairs = ifft2(_folded(first[:, :, None] * coarse, 2)).abs()  # [b, 8, 8, 18, 18]
    channels = torch.cat(
        [
            smooth(x, low, 4),
            smooth(first, low, 4),
            smooth(second, low_half, 2),
            smooth(fft2(pairs).flatten(1, 2), low_half, 2),
        ],
        dim=1,
    )
    return group_norm(channels, GROUPS).flatten(1)


def features(pictures: Tensor, kept: Path | None = None, block: int = 32) -> Tensor:
    """The same of many pictures, remembered in a file."""
    if kept is not None and kept.exists():
        return torch.from_numpy(np.load(kept, allow_pickle=False))
    found = torch.cat([scattered(part) for part in pictures.split(block)])
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.save(kept, found.numpy())
    return found
