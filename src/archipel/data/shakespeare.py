# SPDX-License-Identifier: Apache-2.0
"""Shakespeare by speaking role, to predict the next character (TensorFlow Federated's file)."""

from __future__ import annotations

import gzip
import json

import numpy as np
import numpy.typing as npt

from archipel.data.about import About
from archipel.data.federation import Federation
from archipel.data.sources import bundled
from archipel.errors import ArchipelError

ABOUT = About(
    name="shakespeare",
    source="The Complete Works of Shakespeare, through TensorFlow Federated",
    licence="text: public domain; TensorFlow Federated: Apache-2.0",
    citation="McMahan et al., AISTATS 2017; Caldas et al., LEAF, 2018",
    note="speakers of the same name in several plays are one role",
)
PAD, UNKNOWN = 0, 1
CHARACTERS = "\n !\"&'(),-.123456789:;?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
SYMBOLS = 2 + len(CHARACTERS)  # 80


def encode(text: str) -> npt.NDArray[np.int64]:
    """Return the symbols of a text; characters outside `CHARACTERS` are `UNKNOWN`.

    >>> encode("To é").tolist()
    [44, 67, 3, 1]
    """
    table = np.full(128, UNKNOWN, np.int64)
    table[[ord(c) for c in CHARACTERS]] = np.arange(2, SYMBOLS)
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return np.where(codes < 128, table[np.minimum(codes, 127)], UNKNOWN)


def decode(symbols: npt.ArrayLike) -> str:
    """Return the text of symbols; padding vanishes and `UNKNOWN` becomes �."""
    letters = np.array(["", "�", *CHARACTERS])
    return "".join(letters[np.asarray(symbols)])


def load(length: int = 80, min_windows: int = 1, seed: int = 0) -> Federation:
    """Return roles, x and y int64 [N, length], y the next characters of x, 80 symbols.

    A role's snippets are joined by line ends and cut in windows; the rest at the end is left out.
    Roles with `min_windows` training windows and a test window are in. `seed` changes nothing.
    """
    del seed
    if length < 1 or min_windows < 1:
        raise ArchipelError(f"length={length}, min_windows={min_windows}: give 1 or more.")
    with bundled("shakespeare_by_role.json.gz") as file, gzip.open(file) as plain:
        text: dict[str, dict[str, list[str]]] = json.load(plain)
    windows, names, sizes = [], [], []
    for role in sorted(text["train"]):
        train, test = (_windows("\n".join(text[part][role]), length) for part in ("train", "test"))
        if len(train) >= min_windows and len(test):
            windows += [train, test]
            names.append(role)
            sizes += [len(train), len(test)]
    if not names:
        raise ArchipelError(f"min_windows={min_windows}: no role speaks that much; ask for less.")
    every = np.concatenate(windows)
    part = np.repeat(np.arange(len(sizes)), sizes)
    return Federation.from_rows(
        every[:, :-1],
        every[:, 1:],
        part // 2,
        test=part % 2 == 1,
        names=names,
        task="text",
        classes=SYMBOLS,
        about=ABOUT,
    )


def _windows(text: str, length: int) -> npt.NDArray[np.int64]:
    """Cut a text in windows of `length` characters and the one after."""
    symbols = encode(text)
    count = max(len(symbols) - 1, 0) // length
    windows: npt.NDArray[np.int64] = symbols[
        np.arange(count)[:, None] * length + np.arange(length + 1)
    ]
    return windows
