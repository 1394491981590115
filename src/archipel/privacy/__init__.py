# SPDX-License-Identifier: Apache-2.0
"""Privacy: mechanisms that know what they cost, noise that is safe to release, and its sources."""

from __future__ import annotations

from archipel.privacy.mechanisms import DiscreteGaussian, Exponential, Gaussian, Laplace, Skellam
from archipel.privacy.sources import Keystream, Simulated, Source, System, secret

__all__ = [
    "DiscreteGaussian",
    "Exponential",
    "Gaussian",
    "Keystream",
    "Laplace",
    "Simulated",
    "Skellam",
    "Source",
    "System",
    "secret",
]
