# SPDX-License-Identifier: Apache-2.0
"""The parties of the tables: those that train, those that are new, and writers cut short."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import archipel as ar

NEW = 0.1  # share of the parties that are new
HELD_OUT = 0.15  # of those that train: new ones to choose settings by
CLASSES = 2  # of a party of CIFAR-10 or MNIST
POINTS = (10_000, 2_000)  # of these, to train and to test on, as CIFAR-10's subset has them


@dataclass(frozen=True)
class Parties:
    """A federation, and which of its parties belong together in a table."""

    fed: ar.Federation
    groups: dict[str, slice]  # seen first, then new ones; of real parties

    def prepared(self, virtual: int, folds: int | None, seed: int) -> Parties:
        """With virtual copies of those that train, and folds of the new ones."""
        fed = self.fed.with_virtual(virtual, seed) if virtual else self.fed
        return Parties(fed.cross_fitted(folds, seed) if folds else fed, self.groups)

    def group(self, name: str) -> np.ndarray:
        """Which parties of the federation stand for those of a group."""
        return np.flatnonzero(self.fed.stands.numpy())[self.groups[name]]

    def members(self, name: str) -> np.ndarray:
        """All parties of a group, every fold of them."""
        if self.fed.origin is None:
            return self.group(name)
        return np.flatnonzero(np.isin(self.fed.origin.numpy(), self.group(name)))

    @property
    def known(self) -> float:
        """Share of the test points of those that train that are of a class they train on."""
        found = []
        for k in range(self.groups["seen"].stop):
            _, y, _, y_test = self.fed.party(k)
            found.append(torch.isin(y_test, y))
        return float(torch.cat(found).double().mean())

    def validation(self) -> Parties:
        """Only those that train, some of them as new ones, and a fifth of their training points."""
        fed = self.fed.select(np.arange(self.fed.training)).validation(0.2).with_new(HELD_OUT)
        return Parties(
            fed, {"seen": slice(0, fed.training), "new": slice(fed.training, fed.parties)}
        )


def writers(seed: int, train: int | None = None, most: int | None = None) -> Parties:
    """FEMNIST: a tenth of the 293 whole writers is new, and the 233 partial ones are, too.

    `train` leaves so many of the others to train, the same new ones staying new; `most` is how many
    of each kind of new writers there are.
    """
    fed = ar.load("femnist", new="partial", seed=seed)
    whole = fed.training
    fed = fed.with_new(NEW, seed)
    new = [np.arange(fed.training, whole)[:most], np.arange(whole, fed.parties)[:most]]
    seen = np.random.default_rng([seed, 0]).permutation(fed.training)[:train]
    fed = fed.select(np.concatenate([np.sort(seen), *new]))
    ends = np.cumsum([len(seen), *map(len, new)]).tolist()
    names = ("seen", "new", "partial")
    return Parties(fed, dict(zip(names, map(slice, [0, *ends], ends), strict=True)))


def two_classes(
    name: str, seed: int, parties: int, folder: Path | None, train: int | None = None
) -> Parties:
    """Images of two classes at each party, the same two to train and to test on; a tenth is new."""
    whole = ar.load(name, partition="iid", parties=1, seed=seed, folder=folder)
    rng = np.random.default_rng([seed, 1])
    x, y, x_test, y_test = whole.party(0)
    has = np.concatenate([rng.permutation(whole.classes) for _ in range(_rows(parties, whole))])
    has = has[: CLASSES * parties].reshape(parties, CLASSES)  # every class at as many parties
    rows = _deal(y.numpy(), has, POINTS[0], rng)
    test = _deal(y_test.numpy(), has, POINTS[1], rng)
    fed = ar.Federation.from_arrays(
        [x[r] for r in rows],
        [y[r] for r in rows],
        test=[(x_test[r], y_test[r]) for r in test],
        classes=whole.classes,
        about=whole.about,
    ).with_new(NEW, seed)
    seen, new = np.arange(fed.training), np.arange(fed.training, fed.parties)
    if train is not None:
        seen = np.sort(np.random.default_rng([seed, 0]).permutation(fed.training)[:train])
        fed = fed.select(np.concatenate([seen, new]))
    if name == "cifar10":
        fed = fed.standardised()
    return Parties(fed, {"seen": slice(0, len(seen)), "new": slice(len(seen), fed.parties)})


def _rows(parties: int, fed: ar.Federation) -> int:
    return -(-CLASSES * parties // fed.classes)


def _deal(
    labels: np.ndarray, has: np.ndarray, points: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Cut `points` points, as many of each class, evenly among the parties that have the class."""
    parts: list[list[np.ndarray]] = [[] for _ in has]
    classes = np.unique(has)
    for c in classes:
        owners = np.flatnonzero((has == c).any(axis=1))
        rows = rng.permutation(np.flatnonzero(labels == c))[: points // len(classes)]
        for k, part in zip(owners, np.array_split(rows, len(owners)), strict=True):
            parts[k].append(part)
    return [np.concatenate(part) for part in parts]
