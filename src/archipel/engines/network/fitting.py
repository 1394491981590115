# SPDX-License-Identifier: Apache-2.0
"""An algorithm as both ends of a study run it: on its wire, with what a round of it sends."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from archipel.core import Algorithm
from archipel.data.federation import Federation
from archipel.engines import plan as planning
from archipel.engines.network.transport import Refused
from archipel.engines.party import LocalParty
from archipel.exchange import statistics
from archipel.exchange.anatomy import Anatomy
from archipel.exchange.boxes import Boxes
from archipel.models.model import Model
from archipel.wire.wire import Wire

_MOST_PARTIES = 1 << 20  # of a study between sites


_COHORT = 32  # parties of a round that is tried before the first one, at most


def fitted(
    algorithm: Algorithm,
    data: Federation,
    model: Model,
    k: int,
    seed: int,
    wire: Wire | None = None,
    parties: int = 16,
) -> tuple[Boxes, Anatomy]:
    """The algorithm on the wire, and what a round of it sends, found on two points of party k.

    `parties` are those of the study, about: what grows with them is told from how it grows.
    """
    buffers = model.buffers[None].clone() if model.buffer_spec.size else None
    bare = Boxes(algorithm)
    me = LocalParty(
        data, model, model.one, np.array([k]), seed, 0, (), buffers=buffers, limit=2, mixed=[],
        draws=model.one.draws(data.x[:2]), mixing=(lambda x, coded=None: x) if bare.peer else None,
    )  # fmt: skip
    boxes = statistics.joined(bare, model)
    with planning.threads(1):
        cohort = min(parties, _COHORT)
        around, anatomy = (wire or Wire()).fitted(boxes, me, model.w.clone(), parties, cohort)
    if not statistics.keep_own(bare, model):
        statistics.check_others(model, model.buffers, me.buffers)
    return around(boxes), anatomy


def numbered(data: Federation, party: int) -> Federation:
    """A federation in which the only party is number `party`: draws are keyed by that number."""
    if data.parties != 1:
        raise Refused(f"a seat holds the data of one party, not of {data.parties}.")
    if not 0 <= party < _MOST_PARTIES:
        raise Refused(f"party = {party}: is no party's number.")

    def after(rows: Tensor) -> Tensor:  # so many parties without a point
        return torch.cat([rows.new_zeros(party), rows])

    return Federation(
        data.x, data.y, after(data.offsets), after(data.test_from), party + 1, data.task,
        data.classes, features=data.features,
        scan=False,
    )  # fmt: skip
