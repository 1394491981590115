# SPDX-License-Identifier: Apache-2.0
"""States and messages: a tensor, None, or a (named) tuple of these, and functions over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from archipel.errors import ArchipelError

# A tensor, None, or a (named) tuple of these: Python has no type for a tree whose form every
# algorithm chooses for itself, so to the type checker it is Any; the name says what is meant.
Tree = Any


def leaves(tree: Tree) -> list[Tensor]:
    """Return the tensors of a tree, from left to right.

    >>> leaves((None, ()))
    []
    """
    if tree is None:
        return []
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, tuple):
        found: list[Tensor] = []
        for branch in tree:
            if isinstance(branch, Tensor):
                found.append(branch)
            else:
                found += leaves(branch)
        return found
    raise ArchipelError(
        f"a state or message holds a {type(tree).__name__}: "
        "use tensors, None, tuples and named tuples of tensors."
    )


def tree_map(function: Callable[..., Tensor], tree: Tree, *others: Tree) -> Tree:
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


def fits(form: Tree, tensors: Sequence[Tensor]) -> bool:
    """Whether tensors are, in number, shapes and dtypes, those of a tree of this form."""
    wanted = leaves(form)
    return len(wanted) == len(tensors) and all(
        one.shape == found.shape and one.dtype == found.dtype
        for one, found in zip(wanted, tensors, strict=True)
    )


def fill(form: Tree, tensors: Sequence[Tensor]) -> Tree:
    """The tree of this form whose tensors, from left to right, are these."""
    found = iter(tensors)
    return tree_map(lambda _: next(found), form)


def first(tree: Tree) -> Tensor:
    """Return a state's model: the state itself, or its first tensor."""
    return leaves(tree)[0]


def nbytes(tree: Tree) -> int:
    """Return the bytes of a tree's values."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree))
