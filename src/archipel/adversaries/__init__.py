# SPDX-License-Identifier: Apache-2.0
"""Attacks of parties on the model, simulated: one file per paper, a dataclass each.

Who attacks, and from when to when, is `Adversary`; what an attack may do is in `attack.py`.
"""

from archipel.adversaries.against_krum import AgainstKrum
from archipel.adversaries.alie import ALIE
from archipel.adversaries.backdoor import Backdoor, Semantic
from archipel.adversaries.dissensus import Dissensus
from archipel.adversaries.free_rider import FreeRider
from archipel.adversaries.gaussian import Gaussian
from archipel.adversaries.ipm import IPM
from archipel.adversaries.label_flip import LabelFlip
from archipel.adversaries.min_max import MinMax
from archipel.adversaries.replacement import Replacement
from archipel.adversaries.sign_flip import SignFlip

ATTACKS: dict[str, type] = {
    "against_krum": AgainstKrum,
    "alie": ALIE,
    "backdoor": Backdoor,
    "dissensus": Dissensus,
    "free_rider": FreeRider,
    "gaussian": Gaussian,
    "ipm": IPM,
    "label_flip": LabelFlip,
    "min_max": MinMax,
    "replacement": Replacement,
    "semantic": Semantic,
    "sign_flip": SignFlip,
}
