"""A rule: Multi-Krum.  Blanchard et al., NeurIPS 2017, https://arxiv.org/abs/1703.02757.

    [wire]
    rule = "krum.py:1:3"      # withstands one liar, and averages the three that agree most

Departures: none.
"""

from dataclasses import dataclass

import torch

from archipel.core import Uploads
from archipel.errors import ArchipelError
from archipel.exchange.uploads import Chosen
from archipel.tree import leaves, tree_map


@dataclass(frozen=True)
class Krum:
    f: int = 1  # parties that may lie
    keep: int = 1  # m: uploads that are averaged; 1 is Krum itself

    def __call__(self, uploads: Uploads) -> Uploads:
        m, rows = uploads.sampled, uploads.stack()
        if m < 2 * self.f + 3:
            raise ArchipelError(
                f"round.rule: Krum with f = {self.f} needs {2 * self.f + 3} uploads and has {m}: "
                "sample more parties, or lower f."
            )
        flat = torch.cat([leaf.flatten(1).double() for leaf in leaves(rows)], dim=1)
        apart = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist") ** 2
        nearest = apart.sort(dim=1).values[:, 1 : m - self.f - 1]  # of the others, m - f - 2
        chosen = nearest.sum(dim=1).argsort(stable=True)[: self.keep].sort().values
        return Chosen(uploads, tree_map(lambda leaf: leaf[chosen], rows), chosen)
