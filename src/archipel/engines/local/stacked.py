# SPDX-License-Identifier: Apache-2.0
"""What parties of a block give, in the form that one party's had before the run."""

from __future__ import annotations

from torch import Tensor

from archipel.errors import ArchipelError
from archipel.exchange.anatomy import Growths, shape_of
from archipel.tree import Tree, leaves


def stacked_leaves(
    what: str, tree: Tree, form: Tree, lead: tuple[int, ...], growths: Growths = ()
) -> list[Tensor]:
    """A tree's tensors as `[*lead, ...]`, of the form that one party's had before the run."""
    grown = growths or [None] * len(leaves(form))
    try:
        return [
            leaf.detach().expand((*lead, *shape_of(one, growth, leaf)))
            for leaf, one, growth in zip(leaves(tree), leaves(form), grown, strict=True)
        ]
    except (RuntimeError, ValueError):
        got = [list(leaf.shape) for leaf in leaves(tree)]
        wanted = [list(one.shape) for one in leaves(form)]
        raise ArchipelError(
            f"{what} of {lead[-1]} parties has shapes {got}, but one party's had {wanted}: "
            "keep the shape from round to round, and name the last dimension in every reduction."
        ) from None
