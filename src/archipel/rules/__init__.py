# SPDX-License-Identifier: Apache-2.0
"""Rules for the mean that withstand parties that lie: one file per paper, `[m, p] -> [m', p]`.

A rule makes rows of the uploads' rows, and the server's mean is over those: one row for a median,
some for Krum, as many as before for nearest-neighbour mixing, after which another rule may come.
Those that say `between_peers` are also rules of peers (`aggregation/mixing.py`); with `mixed`, of
peers alone.
"""

from archipel.rules.bucketing import Bucketing
from archipel.rules.bulyan import Bulyan
from archipel.rules.centred_clipping import CentredClipping
from archipel.rules.clipped_gossip import ClippedGossip, FixedClippedGossip
from archipel.rules.fltrust import FLTrust
from archipel.rules.geometric_median import GeometricMedian
from archipel.rules.krum import Krum, MultiKrum
from archipel.rules.median import Median
from archipel.rules.nnm import NNM
from archipel.rules.norm_bound import NormBound
from archipel.rules.trimmed_mean import TrimmedMean

RULES: dict[str, type] = {
    "bucketing": Bucketing,
    "bulyan": Bulyan,
    "centred_clipping": CentredClipping,
    "clipped_gossip": ClippedGossip,
    "fixed_clipped_gossip": FixedClippedGossip,
    "fltrust": FLTrust,
    "geometric_median": GeometricMedian,
    "krum": Krum,
    "median": Median,
    "multi_krum": MultiKrum,
    "nnm": NNM,
    "norm_bound": NormBound,
    "trimmed_mean": TrimmedMean,
}
