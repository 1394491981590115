# SPDX-License-Identifier: Apache-2.0
"""An algorithm as both ends of a study run it: on its wire, with what a round of it sends."""

from __future__ import annotations

import numpy as np

from archipel.core import Algorithm
from archipel.data.federation import Federation
from archipel.engines import plan as planning
from archipel.engines.party import LocalParty
from archipel.exchange import statistics
from archipel.exchange.anatomy import Anatomy
from archipel.exchange.boxes import Boxes
from archipel.models.model import Model
from archipel.wire.wire import Wire


def fitted(
    algorithm: Algorithm,
    data: Federation,
    model: Model,
    k: int,
    seed: int,
    wire: Wire | None = None,
    parties: int = 8,
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
        around, anatomy = (wire or Wire()).fitted(boxes, me, model.w.clone(), parties)
    if not statistics.keep_own(bare, model):
        statistics.check_others(model, model.buffers, me.buffers)
    return around(boxes), anatomy
