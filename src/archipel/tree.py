# SPDX-License-Identifier: Apache-2.0
"""States and messages: a tensor, None, or a (named) tuple of these, and functions over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from archipel.errors import ArchipelError


def leaves(tree: Any) -> list[Tensor]:
    """Return the tensors of a tree, from left to right.

    >>> leaves((None, ()))
    []
    """
    if tree is None:
        return []
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, tuple):
        return [leaf for branch in tree for leaf in leaves(branch)]
    raise ArchipelError(
        f"a state or message holds a {type(tree).__name__}: "
        "use tensors, None, tuples and named tuples of tensors."
    )


def tree_map(function: Callable[..., Tensor], tree: Any, *others: Any) -> Any:
    """Apply a function leaf by leaf to trees of one form."""
    if tree is None:
        return None
    if isinstance(tree, Tensor):
        return function(tree, *others)
    if isinstance(tree, tuple):
        branches = [tree_map(function, *group) for group in zip(tree, *others, strict=True)]
        return type(tree)(*branches) if hasattr(tree, "_fields") else tuple(branches)
    leaves(tree)  # says what is wrong
    return None


def first(tree: Any) -> Tensor:
    """Return a state's model: the state itself, or its first tensor."""
    return leaves(tree)[0]


def nbytes(tree: Any) -> int:
    """Return the bytes of a tree's values."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree))
