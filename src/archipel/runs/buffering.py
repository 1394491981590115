# SPDX-License-Identifier: Apache-2.0
"""What a study may say of rounds in which nobody waits for anybody."""

from __future__ import annotations

from math import ceil

from archipel.aggregation.summation import Summation, check_parties
from archipel.core import Algorithm
from archipel.errors import ArchipelError
from archipel.exchange.boxes import Boxes, buffer_of, is_asynchronous
from archipel.runs.participation import Participation


def check_buffer(
    algorithm: Algorithm,
    who: Participation,
    how: Summation | None,
    sites: int,
    averaged: bool = False,
) -> None:
    """Refuse rounds that so many sites cannot have; of a synchronous algorithm nothing is said.

    `averaged` is whether BatchNorm's statistics are.
    """
    if not is_asynchronous(algorithm):
        return
    name, at_once = Boxes(algorithm).name, who.count(sites)
    buffer = buffer_of(algorithm, at_once)
    if who.over_select:
        raise ArchipelError(
            f"round.over_select = {who.over_select:g}: {name} waits for no party, so none is asked "
            "to spare; leave it out, or have more train at once (round.sample)."
        )
    if who.separation > 1:
        raise ArchipelError(
            f"round.separation = {who.separation}: parties of {name} are in rounds of their own "
            "pace, and none sits out; leave it out."
        )
    if buffer > sites:
        raise ArchipelError(
            f"algorithm.buffer = {buffer}: {sites} sites take part, and each is in a buffer once; "
            f"give {sites} or fewer."
        )
    if averaged and buffer < 2:
        raise ArchipelError(
            f"algorithm.buffer = {buffer}: BatchNorm's averaged statistics would be those of the "
            'one site that sent last; say model.statistics = "own", or give a larger buffer.'
        )
    quorum = who.quorum if isinstance(who.quorum, int) else ceil(who.quorum * at_once)
    if quorum > buffer:
        raise ArchipelError(
            f"round.quorum = {who.quorum}: a step of {name} takes algorithm.buffer = {buffer} "
            f"uploads; give {buffer} or fewer."
        )
    if how is not None:
        try:
            check_parties(how, buffer)
        except ArchipelError as error:
            raise ArchipelError(
                f"algorithm.buffer = {buffer} and {error} Here a round has the parties of a buffer."
            ) from None
