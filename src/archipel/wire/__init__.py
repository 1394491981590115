# SPDX-License-Identifier: Apache-2.0
"""The wire: steps between a party's upload and the server, one file each."""

from __future__ import annotations

from archipel.wire.clip import Clip
from archipel.wire.entropy import Entropy
from archipel.wire.float16 import Float16
from archipel.wire.low_rank import LowRank
from archipel.wire.power_sgd import PowerSGD
from archipel.wire.quantise import Quantise
from archipel.wire.random_k import RandomK
from archipel.wire.random_mask import RandomMask
from archipel.wire.rotate import Rotate
from archipel.wire.sign import Sign
from archipel.wire.subsample import Subsample
from archipel.wire.top_k import TopK

STEPS: dict[str, type] = {
    "clip": Clip,
    "entropy": Entropy,
    "float16": Float16,
    "low_rank": LowRank,
    "power_sgd": PowerSGD,
    "quantise": Quantise,
    "random_k": RandomK,
    "random_mask": RandomMask,
    "rotate": Rotate,
    "sign": Sign,
    "subsample": Subsample,
    "top_k": TopK,
}

__all__ = [
    "STEPS",
    "Clip",
    "Entropy",
    "Float16",
    "LowRank",
    "PowerSGD",
    "Quantise",
    "RandomK",
    "RandomMask",
    "Rotate",
    "Sign",
    "Subsample",
    "TopK",
]
