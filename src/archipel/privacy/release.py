# SPDX-License-Identifier: Apache-2.0
"""What leaves, as an accountant sees it: a mechanism, how participants were sampled, how often.

A participant is the unit of the promise: a record, or a party. Noise is counted in its largest
contribution, the bound of the clip. Adding or removing a participant moves the sum by at most one
contribution, replacing it by at most two: `DISTANCE`. Whoever divides by a number of participants
divides by one that all know.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from math import ceil, inf, isfinite, sqrt
from operator import index
from typing import Any, Literal

from archipel.errors import ArchipelError, unknown

Neighbours = Literal["add_or_remove", "replace"]
Kind = Literal["gaussian", "skellam"]  # of integer noise that is added in shares
DISTANCE = {"add_or_remove": 1, "replace": 2}  # contributions between two neighbours


def _above_zero(name: str, value: float, most: float = inf) -> None:
    if not 0 < value <= most:
        limit = "above 0" if most == inf else f"above 0 and up to {most:g}"
        raise ArchipelError(f"{name} = {value!r}: give a number {limit}.")


def _from_zero(name: str, value: float) -> None:
    if not value >= 0:  # so that NaN is refused
        raise ArchipelError(f"{name} = {value!r}: give a number from 0.")


def _whole(name: str, value: int, low: int) -> None:
    try:
        right = not isinstance(value, bool) and index(value) >= low
    except TypeError:
        right = False
    if not right:
        raise ArchipelError(f"{name} = {value!r}: give a whole number from {low}.")


@dataclass(frozen=True)
class Gaussian:
    """Gaussian noise on a sum of vectors."""

    noise: float  # z: standard deviation / largest l2 norm of a contribution

    def __post_init__(self) -> None:
        _from_zero("noise", self.noise)


@dataclass(frozen=True)
class Laplace:
    """Laplace noise on a sum of vectors, each coordinate its own."""

    noise: float  # scale / largest l1 norm of a contribution

    def __post_init__(self) -> None:
        _from_zero("noise", self.noise)


@dataclass(frozen=True)
class DiscreteGaussian:
    """Discrete Gaussian noise on a sum of vectors of whole numbers: steps of a grid.

    Or the sum of several such, a share of each party that is counted on.
    """

    sigma: float  # parameter of one share, in steps
    contribution: float = 1.0  # largest l2 norm of a contribution, in steps, after rounding
    dimensions: int = 1
    shares: int = 1

    def __post_init__(self) -> None:
        _from_zero("sigma", self.sigma)
        _in_steps(self.contribution, self.dimensions, self.shares)

    @property
    def noise(self) -> float:
        """z, as Gaussian noise has it; one number moves by whole steps."""
        largest = self.contribution if self.dimensions > 1 else ceil(self.contribution)
        return self.sigma * sqrt(self.shares) / largest


@dataclass(frozen=True)
class Skellam:
    """Skellam noise on a sum of vectors of whole numbers, or the sum of several shares of it."""

    variance: float  # of one share, in steps
    contribution: float = 1.0  # largest l2 norm of a contribution, in steps, after rounding
    dimensions: int = 1
    shares: int = 1

    def __post_init__(self) -> None:
        _from_zero("variance", self.variance)
        _in_steps(self.contribution, self.dimensions, self.shares)

    @property
    def noise(self) -> float:
        """Its deviation over the largest contribution."""
        return sqrt(self.variance * self.shares) / self.contribution


def _in_steps(contribution: float, dimensions: int, shares: int) -> None:
    _whole("dimensions", dimensions, 1)
    _whole("shares", shares, 1)
    if not (isfinite(contribution) and contribution > 0):
        raise ArchipelError(
            f"contribution = {contribution!r}: give a finite number above 0, in steps."
        )


@dataclass(frozen=True)
class Binomial:
    """The number of heads of fair coins, added to a sum of whole numbers: steps of a grid."""

    coins: int
    contribution: int = 1  # largest contribution, in steps

    def __post_init__(self) -> None:
        _whole("coins", self.coins, 1)
        _whole("contribution", self.contribution, 1)

    @property
    def noise(self) -> float:
        """z, as Gaussian noise has it."""
        return sqrt(self.coins) / 2 / self.contribution


@dataclass(frozen=True)
class Pure:
    """Anything that is epsilon-differentially private when one is added or removed."""

    epsilon: float

    def __post_init__(self) -> None:
        _from_zero("epsilon", self.epsilon)


@dataclass(frozen=True)
class Shuffled:
    """Reports of which nobody knows whose is which, each ε0-private where one is replaced."""

    epsilon0: float
    reports: int  # of honest participants
    values: int | None = None  # k, of k-ary randomised response; None: any randomiser
    stays: bool = False  # whether there is a report of a participant that is removed, too

    def __post_init__(self) -> None:
        _from_zero("epsilon0", self.epsilon0)
        _whole("reports", self.reports, 1)
        if self.values is not None:
            _whole("values", self.values, 2)


@dataclass(frozen=True)
class Poisson:
    """Each participant comes with probability `rate`, on its own; the adversary knows not who."""

    rate: float  # q

    def __post_init__(self) -> None:
        _above_zero("rate", self.rate, most=1)


@dataclass(frozen=True)
class FixedSize:
    """`sampled` of `among` participants come, every such set alike; the adversary knows not who."""

    sampled: int  # m
    among: int  # n

    def __post_init__(self) -> None:
        _whole("sampled", self.sampled, 1)
        _whole("among", self.among, 1)
        if self.sampled > self.among:
            raise ArchipelError(
                f"sampled = {self.sampled}: there are {self.among} to sample from; give at most "
                "as many."
            )

    @property
    def rate(self) -> float:
        return self.sampled / self.among


Mechanism = Gaussian | Laplace | DiscreteGaussian | Skellam | Binomial | Pure | Shuffled
Sampling = Poisson | FixedSize


@dataclass(frozen=True)
class Release:
    """Something that leaves, `times` times, each time with fresh noise and a fresh sample.

    Each attempt of a round is one of these times: a round that is tried again draws noise again.
    Without `sampling` the cohort is everybody, or known to the adversary.
    """

    mechanism: Mechanism
    sampling: Sampling | None = None
    times: int = 1

    def __post_init__(self) -> None:
        _whole("times", self.times, 0)

    @property
    def rate(self) -> float:
        """How likely a participant is in it: 1 where nobody is sampled."""
        return 1.0 if self.sampling is None else self.sampling.rate


MECHANISMS: dict[str, type[Mechanism]] = {
    "gaussian": Gaussian,
    "laplace": Laplace,
    "discrete_gaussian": DiscreteGaussian,
    "skellam": Skellam,
    "binomial": Binomial,
    "pure": Pure,
    "shuffled": Shuffled,
}
SAMPLINGS: dict[str, type[Sampling]] = {"poisson": Poisson, "fixed_size": FixedSize}


def written(release: Release) -> dict[str, Any]:
    """A release as JSON holds it, for ledgers.

    >>> written(Release(Gaussian(1.1), Poisson(0.01), times=600))
    {'mechanism': 'gaussian', 'noise': 1.1, 'sampling': 'poisson', 'rate': 0.01, 'times': 600}
    """
    names: dict[type, str] = {kind: name for name, kind in (MECHANISMS | SAMPLINGS).items()}
    drawn = release.sampling
    return {
        "mechanism": names[type(release.mechanism)],
        **asdict(release.mechanism),
        **({"sampling": names[type(drawn)], **asdict(drawn)} if drawn else {}),
        "times": release.times,
    }


def read(values: dict[str, Any]) -> Release:
    """A release from what `written` made of it.

    >>> read({"mechanism": "pure", "epsilon": 0.5, "times": 1})
    Release(mechanism=Pure(epsilon=0.5), sampling=None, times=1)
    """
    rest = dict(values)
    try:
        times, name, drawn = rest.pop("times"), rest.pop("mechanism"), rest.pop("sampling", None)
        if name not in MECHANISMS:
            raise unknown("mechanism", name, MECHANISMS)
        if drawn is not None and drawn not in SAMPLINGS:
            raise unknown("sampling", drawn, SAMPLINGS)
        of = SAMPLINGS[drawn].__dataclass_fields__ if drawn else {}
        sampling = SAMPLINGS[drawn](**{key: rest.pop(key) for key in of}) if drawn else None
        return Release(MECHANISMS[name](**rest), sampling, times)
    except (KeyError, TypeError) as error:
        raise ArchipelError(
            f"release = {values!r}: not a release ({error}); it was changed, or written by another "
            "version."
        ) from None


def together(releases: Iterable[Release]) -> tuple[Release, ...]:
    """The same releases with equal ones counted together, and without those that tell nothing.

    A rate of 1 is no sampling, so nothing is amplified.
    """
    counts: dict[tuple[Mechanism, Sampling | None], int] = {}
    for each in releases:
        key = (each.mechanism, each.sampling if each.rate < 1 else None)
        counts[key] = counts.get(key, 0) + each.times
    found = [Release(*key, times) for key, times in counts.items() if times and not _silent(key[0])]
    return tuple(sorted(found, key=lambda each: repr(replace(each, times=1))))


def _silent(mechanism: Mechanism) -> bool:
    if isinstance(mechanism, Pure):
        return mechanism.epsilon == 0
    if isinstance(mechanism, Shuffled):
        return mechanism.epsilon0 == 0
    return mechanism.noise == inf


def bare(release: Release) -> bool:
    """Whether it leaves without any noise."""
    match release.mechanism:
        case Pure(epsilon) | Shuffled(epsilon):
            return epsilon == inf
        case other:
            return other.noise == 0
