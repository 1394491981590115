# SPDX-License-Identifier: Apache-2.0
"""A promise of privacy in words, where every site keeps it and nobody else knows its plan."""

from __future__ import annotations

from archipel.privacy.promise import Privacy


def at_sites(promise: Privacy) -> str:
    """What is promised where every site keeps it by itself."""
    much = (
        f"noise of {promise.noise:g} times the clip, and at δ = {promise.delta:g} the ε that comes "
        "of it"
        if promise.epsilon is None
        else f"(ε, δ) = ({promise.epsilon:.3g}, {promise.delta:g}) at most"
    )
    if promise.correlated is not None:
        much += f", with noise that is correlated over rounds ({promise.correlated})"
    return (
        f"{much}, for every record of a site, whoever sees what left it: each site finds its own "
        "noise and keeps account of what it spent. Not covered: metrics on test points, sums for "
        "the common scale, and how many records a site has."
    )
