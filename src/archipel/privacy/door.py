# SPDX-License-Identifier: Apache-2.0
"""The private door: `me` under record-level privacy, so that every algorithm behind it is private.

`me` is all that code at a party may use, so what it gives is all that can leave. Behind this door
that is, of a party's records, gradients alone, those of DP-SGD: of a Poisson sample, in which each
record is by itself with chance q, each record's gradient is clipped to norm C, and what they add up
to gets Gaussian noise of deviation z C; divided by q n, the sample's size on average.

    g = (sum_{i in sample} clip(g_i, C) + N(0, z^2 C^2 I)) / (q n)

With Laplace noise (`privacy.mechanism`) norms are L1 and each number's noise has the scale z C.

A batch of size b has q = b / n, one of all data q = 1. Several gradients on one batch are noised
one by one and share its sample. The sample is drawn where nobody sees it: a batch is a number that
the door knows, without rows. What an algorithm does with the gradients is post-processing.

Where noise is correlated over a party's gradients (`privacy.correlated`), nothing is sampled: its
records have an order, drawn once, and batches are dealt along it, S of an epoch, of n / S records
each. Gradient t of the party, over all rounds, is of batch t mod S: a record is in one of S, and
two that it is in are S apart, whatever rounds the party misses and whatever it leaves undone in
them. Gradients are over q n with q = 1 / S. A record that is added or removed leaves the places of
the others as they are.

How many records a party has (`n`) is no secret here; it says how many steps are taken. Points
that an algorithm brings along pass a model freely (`outputs`, `features`). The records themselves
(`examples`) and losses, which no clip bounds, are refused.

Abadi et al., CCS 2016, https://arxiv.org/abs/1607.00133, Algorithm 1.
Departures: Algorithm 1 divides by the lot size L, which is q n here as well, and never by the size
of the sample that was drawn, which would tell it.

One file, since what passes the door, what it counts and what it refuses make one promise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.core import Batch, Blueprint, Descent, LocalWork, Near, Others, Vector
from archipel.errors import ArchipelError
from archipel.exchange.anatomy import pair
from archipel.exchange.boxes import Around, Boxes
from archipel.exchange.talk import Talk
from archipel.privacy.correlated import State, Strategy, Toeplitz, Tree, add_toeplitz
from archipel.privacy.mechanisms import Laplace
from archipel.privacy.promise import Noise
from archipel.training.descent import Private, Work, checked_batch_size, descend, work_of
from archipel.training.schedules import rate
from archipel.tree import Tree as States

if TYPE_CHECKING:
    from archipel.training.subspace import Subspace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Size = int | float | None  # of a batch, as an algorithm gives it


class Inside(Protocol):
    """A party as the door needs it: engines have it."""

    n: Tensor
    number: Tensor
    round: int
    lead: tuple[int, ...]
    within: Subspace | None

    @property
    def blueprint(self) -> Blueprint: ...
    @property
    def others(self) -> Others: ...  # keys, and nothing of records
    @property
    def staleness(self) -> Tensor: ...
    @property
    def sizes(self) -> NDArray[np.int64]: ...  # [m] training records
    def sampled(self, rates: Floats, draw: int) -> Batch: ...
    def dealt(self, parts: Ints, at: Ints, draw: int) -> Batch: ...
    def clipped(self, w: Vector, batch: Batch, clip: float) -> Vector: ...
    def noised(
        self, values: Tensor, purpose: str, mechanism: Noise = "gaussian"
    ) -> Tensor: ...  # + noise of scale 1, protecting
    def fuses(self, work: Work, only: Tensor | None) -> bool: ...
    def descend_privately(
        self,
        w: Vector,
        work: Work,
        private: Private,
        shift: Vector | None,
        pull: float | Tensor,
        towards: Vector | None,
    ) -> Vector: ...
    def steps(self, work: LocalWork) -> Tensor: ...
    def outputs(self, w: Vector, x: Tensor) -> Tensor: ...
    def features(self, w: Vector, x: Tensor) -> Tensor: ...
    def normal(self, like: Vector) -> Vector: ...
    def noise(self, like: Vector) -> Vector: ...
    def secret(self, purpose: str) -> Tensor: ...
    def mix(self, x: Vector) -> Vector: ...
    def coded(self, x: Vector, held: Vector) -> Vector: ...
    @property
    def near(self) -> Near: ...
    @property
    def around(self) -> States: ...
    @property
    def degree(self) -> Tensor: ...
    @property
    def drawn(self) -> Near: ...
    def join(self, others: Near, weight: Tensor) -> None: ...
    def swap(self, x: States) -> States: ...
    @property
    def met(self) -> Tensor: ...
    @property
    def woke(self) -> Tensor: ...


class Used(NamedTuple):
    """What a party's records were used for in a round, with batches of one size."""

    draws: NDArray[np.int64]  # [m] samples that were drawn, of each party
    gradients: int  # noised gradients on one sample, at most


class Order(NamedTuple):
    """Noise that is correlated over the gradients of a party, whose batches are in an order."""

    strategy: Strategy
    batches: int  # S: of an epoch
    gradients: int  # T: that it was planned for


@dataclass(frozen=True)
class Noised:
    """How gradients are made private."""

    clip: float  # C
    noise: dict[int, float]  # z of each party, by its number
    allowed: dict[int, dict[Size, tuple[int, int]]] | None = None  # of each: draws and gradients
    orders: dict[int, Order] | None = None  # None where noise is independent
    mechanism: Noise = "gaussian"


class _Sample(NamedTuple):
    """A batch that was drawn."""

    size: Size
    batch: Batch
    rates: Floats  # [m]
    going: NDArray[np.bool_]  # [m] parties that have a step left


class Door:
    """A party's `me`, private: see the module."""

    def __init__(self, me: Inside, noised: Noised, name: str, state: State | None = None) -> None:
        """`name` is the algorithm's, for what is refused; `state` that of correlated noise."""
        self._me, self._noised, self._name = me, noised, name
        self.n, self.number, self.round = me.n, me.number, me.round
        self._numbers: list[int] = me.number.reshape(-1, max(1, len(me.sizes)))[0].tolist()
        self._deviations = np.array([noised.clip * noised.noise[k] for k in self._numbers])
        self._samples: list[_Sample] = []
        self._gradients: list[int] = []  # on each sample
        self._used: dict[Size, Used] = {}
        self._noises = 0
        self.state = state
        self._orders = [noised.orders[k] for k in self._numbers] if noised.orders else None
        if state is not None:
            self._dealt = state.t.reshape(-1, len(self._numbers))[0].numpy().copy()  # batches

    @property
    def blueprint(self) -> Blueprint:
        return self._me.blueprint

    @property
    def staleness(self) -> Tensor:
        return self._me.staleness

    @property
    def within(self) -> Subspace | None:
        return self._me.within

    @property
    def others(self) -> Others:
        return self._me.others

    # -- gradients ---------------------------------------------------------------------------------

    def batch(self, size: Size, going: Tensor | None = None) -> Batch:
        m = len(self._me.sizes)
        moving = np.ones(m, bool)
        if going is not None:
            every = going.expand(*self._me.lead, 1).reshape(-1, m)
            moving = every.any(dim=0).numpy()
        return self._drawn(checked_batch_size(size), moving)

    def _drawn(self, size: Size, going: NDArray[np.bool_]) -> Batch:
        at = len(self._samples)
        if self._orders is None:
            rates = rates_of(size, self._me.sizes)
            batch = self._me.sampled(np.where(going, rates, 0.0), at)
        else:
            parts = np.array([order.batches for order in self._orders])
            rates = 1 / parts
            batch = self._me.dealt(parts, np.where(going, self._dealt % parts, parts), at)
            self._dealt += going
        self._samples.append(_Sample(size, batch, rates, going))
        self._gradients.append(0)
        draws, most = self._used.get(size, Used(np.zeros(len(going), np.int64), 0))
        self._use(size, Used(draws + going, most))
        nothing = torch.zeros(len(going), 0)
        return Batch(nothing.long(), nothing, torch.full((len(going),), at))

    def grad(self, w: Vector, batch: Batch | None = None) -> Vector:
        if batch is None:
            batch = self._drawn(None, np.ones(len(self._me.sizes), bool))
        sample = self._sample(batch)
        total = self._me.clipped(w, sample.batch, self._noised.clip)
        deviation = self._by_party(self._deviations, total)  # z C
        noisy, purpose = total, f"gradient {self._noises}"
        if self._orders is not None:
            noisy = self._correlated(total / deviation, sample, self._orders) * deviation
        elif not bool((deviation > 0).all()):
            pass  # a trial
        elif self._noised.mechanism == "laplace":
            scale = self._by_party(self._wider(total.shape[-1]), total)
            noisy = self._me.noised(total / scale, purpose, "laplace") * scale
        else:
            noisy = self._me.noised(total / deviation, purpose) * deviation
        self._noises += 1
        expected = np.maximum(sample.rates * self._me.sizes, 1e-300)  # q n
        return noisy * self._by_party(sample.going / expected, total)

    def _wider(self, size: int) -> Floats:
        """Scales `[m]` of Laplace noise, with what rounding so many numbers to a grid adds."""
        own = [self._noised.noise[k] for k in self._numbers]
        found = {z: Laplace.calibrated(1 / z, 1.0, size).scale for z in set(own)}
        return np.array([self._noised.clip * found[z] for z in own])

    def _correlated(self, total: Tensor, sample: _Sample, orders: list[Order]) -> Tensor:
        """The same with the noise of the party's next gradient; batches are used in their order."""
        assert self.state is not None
        if not any(sample is each for each in self._samples[self._noises : self._noises + 1]):
            raise ArchipelError(
                f"privacy.correlated: {self._name} does not take one gradient of each batch, in "
                "the order in which it draws them; leave correlated out."
            )
        last = np.array([order.gradients for order in orders])
        for k, dealt, most in zip(self._numbers, self._dealt, last, strict=True):
            if dealt > most:
                raise ArchipelError(
                    f"privacy.correlated: the noise of party {k} was planned for {most} gradients, "
                    "which are used up: it has been in more rounds, or in some more than once."
                )
        number, going = self._noises, self._by_party(sample.going, self.state.t).bool()

        def noised(values: Tensor, again: int) -> Tensor:
            return self._me.noised(values, f"gradient {number}" + f" {again}" * (again > 0))

        x = total.double()
        trees = [order.strategy for order in orders if isinstance(order.strategy, Tree)]
        if trees:
            longest = max(trees, key=lambda each: each.rounds)
            self.state, y = longest.add(self.state, x, noised, going)
        else:
            self.state, y = add_toeplitz(self._coefficients(x), self.state, x, noised, going)
        return y.to(total.dtype)

    def _coefficients(self, like: Tensor) -> list[Tensor]:
        """Of each party `[..., 1]`, as many as the widest has."""
        assert self._orders is not None and self.state is not None
        table = np.zeros((len(self._orders), 1 + len(self.state.rows)))
        for row, order in zip(table, self._orders, strict=True):
            assert isinstance(order.strategy, Toeplitz)
            row[: len(order.strategy.coefficients)] = order.strategy.coefficients
        return [self._by_party(column, like) for column in table.T]

    def _by_party(self, values: NDArray[Any], like: Tensor) -> Tensor:
        """A number of each party `[m]` as `[..., 1]`, whatever the stack."""
        one = torch.from_numpy(values).to(like.dtype)
        return one.view(*self._me.lead[-1:], 1).expand(*self._me.lead, 1)

    def _sample(self, batch: Batch) -> _Sample:
        at = int(batch.draw.reshape(-1)[0])
        if not 0 <= at < len(self._samples):
            raise ArchipelError(
                f"{self._name} uses a batch that it did not draw with me.batch: draw one."
            )
        self._gradients[at] += 1
        size = self._samples[at].size
        draws, most = self._used[size]
        self._use(size, Used(draws, max(most, self._gradients[at])))
        return self._samples[at]

    def descend(
        self,
        w: Vector,
        work: LocalWork,
        shift: Vector | None = None,
        pull: float | Tensor = 0.0,
        towards: Vector | None = None,
        only: Tensor | None = None,
        aside: bool = False,
    ) -> Descent:
        fused = self._fused(w, work, shift, pull, towards, only)
        return descend(self, w, work, shift, pull, towards, only) if fused is None else fused

    def _fused(
        self,
        w: Vector,
        work: LocalWork,
        shift: Vector | None,
        pull: float | Tensor,
        towards: Vector | None,
        only: Tensor | None,
    ) -> Descent | None:
        """The same by an engine that takes these steps at once; None where it does not.

        Samples have the numbers that they would have one by one. They are used up in there: no
        batch of this door is one of them.
        """
        task, me = work_of(work), self._me
        plain = self._orders is None and self._noised.mechanism == "gaussian"
        if not plain or not me.fuses(task, only):
            return None
        steps, size, first = me.steps(work), task.batch_size, len(self._samples)
        taken = steps.reshape(-1, len(me.sizes))[0].long().numpy()
        draws, most = self._used.get(size, Used(np.zeros(len(taken), np.int64), 0))
        self._use(size, Used(draws + taken, max(most, 1)))
        rates, nothing = rates_of(size, me.sizes), torch.zeros(len(taken), 0)
        gone = _Sample(size, Batch(nothing.long(), nothing, nothing), rates, taken < 0)
        total = int(taken.max(initial=0))
        self._samples += [gone] * total
        self._gradients += [1] * total
        self._noises += total
        private = Private(first, rates, self._noised.clip, self._deviations)
        end = me.descend_privately(w, task, private, shift, pull, towards)
        return Descent(end, steps, steps * rate(task.lr, me.round))

    def steps(self, work: LocalWork) -> Tensor:
        return self._me.steps(work)

    # -- what asks nothing of the records ----------------------------------------------------------

    def outputs(self, w: Vector, x: Tensor) -> Tensor:
        return self._me.outputs(w, x)

    def features(self, w: Vector, x: Tensor) -> Tensor:
        return self._me.features(w, x)

    def normal(self, like: Vector) -> Vector:
        return self._me.normal(like)

    def noise(self, like: Vector) -> Vector:
        return self._me.noise(like)

    def secret(self, purpose: str) -> Tensor:
        return self._me.secret(purpose)

    def mix(self, x: Vector) -> Vector:
        return self._me.mix(x)

    def coded(self, x: Vector, held: Vector) -> Vector:
        return self._me.coded(x, held)

    @property
    def near(self) -> Near:
        return self._me.near

    @property
    def around(self) -> States:
        return self._me.around

    @property
    def degree(self) -> Tensor:
        return self._me.degree

    @property
    def drawn(self) -> Near:
        return self._me.drawn

    def join(self, others: Near, weight: Tensor) -> None:
        self._me.join(others, weight)

    def swap(self, x: States) -> States:
        return self._me.swap(x)

    @property
    def met(self) -> Tensor:
        return self._me.met

    @property
    def woke(self) -> Tensor:
        return self._me.woke

    # -- what is refused ---------------------------------------------------------------------------

    def examples(self, batch: Batch | None = None) -> NoReturn:
        self._refuse("me.examples", "which are the records themselves")

    def loss(self, w: Vector, batch: Batch | None = None) -> NoReturn:
        self._refuse("me.loss", "which no clip bounds")

    def _refuse(self, call: str, why: str) -> NoReturn:
        raise ArchipelError(
            f'privacy.unit = "record": {self._name} asks for {call}, {why}, so it cannot be made '
            'private by record; take another algorithm, or with a server privacy.unit = "party".'
        )

    # -- what was used -----------------------------------------------------------------------------

    @property
    def used(self) -> dict[Size, Used]:
        """What the records were used for so far, by size of the batches."""
        return dict(self._used)

    def _use(self, size: Size, used: Used) -> None:
        """Write down what is used; refuse more than was planned, and is paid for."""
        self._used[size] = used
        if self._noised.allowed is None:
            return
        for k, draws in zip(self._numbers, used.draws.tolist(), strict=True):
            most = self._noised.allowed[k].get(size, (0, 0))
            if draws > most[0] or used.gradients > most[1]:
                raise ArchipelError(
                    f"{self._name} asks for more gradients in round {self.round + 1} than in the "
                    "round that was tried before the first: give every round the same work."
                )


class Remembering(NamedTuple):
    """What a party keeps: the algorithm's own state, and that of correlated noise."""

    inner: States
    noise: State


class Doored(Around):
    """An algorithm whose parties have the private door. What stays at a party needs none."""

    def __init__(self, inner: Boxes, noised: Noised) -> None:
        super().__init__(inner)
        self._noised = noised

    def init(self, w: Vector, blueprint: Blueprint) -> States:
        states = self.inner.init(w, blueprint)
        if self._noised.orders is None:
            return states
        starts = [order.strategy.start(w) for order in set(self._noised.orders.values())]
        noise = max(starts, key=lambda start: len(start.rows))  # the same form for all parties
        if self.peer:
            return Remembering(states, noise)
        shared, own = pair(f"{self.name}.init", "shared, own", states)
        return shared, Remembering(own, noise)

    def party(self, me: Any, *states: States) -> Any:
        if self._noised.orders is None:
            return self.inner.party(Door(me, self._noised, self.name), *states)
        *shared, own = states
        door = Door(me, self._noised, self.name, own.noise)
        if self.peer:
            state = self.inner.party(door, own.inner)
            return Remembering(state, door.state)  # type: ignore[arg-type]
        return self._with_server(door, *shared, own.inner)

    def _with_server(self, door: Door, *states: States) -> Any:
        talk = Talk(self.inner.party(door, *states))
        while not talk.ended:
            talk.send((yield talk.said))
        upload, own = pair(f"{self.name}.party", "upload, own", talk.said)
        return upload, Remembering(own, door.state)  # type: ignore[arg-type]

    def personal(self, me: Any, shared: States, own: States) -> Any:
        """A model that a party makes for itself does not leave it; what it asks the server does."""
        kept = own if self._noised.orders is None else own.inner
        talk = Talk(self.inner.personal(me, shared, kept))
        if not talk.ended:
            raise ArchipelError(
                f'privacy.unit = "record": {self.name} asks the server for a model of a party\'s '
                "own with what it made of the records; take an algorithm that does not."
            )
        return talk.said


def rates_of(size: Size, sizes: NDArray[np.int64]) -> Floats:
    """The chance q of each record to be in a batch, `[m]`."""
    n = np.maximum(sizes, 1)
    if size is None:
        return np.ones(len(n))
    return np.full(len(n), size) if isinstance(size, float) else np.minimum(1.0, size / n)
