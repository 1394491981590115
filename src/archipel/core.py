# SPDX-License-Identifier: Apache-2.0
"""The nouns: Vector, Party, Uploads and the two kinds of algorithm. The page to read first.

Every model, update, control variate and message is a flat vector `[..., p]`; leading dimensions are
stacked parties. An algorithm is a frozen dataclass of hyper-parameters with pure methods: it owns
one round, the engine owns the loop over rounds and supplies `me`, the only door to the outside.

The model of a run is the shared state itself, or its first field where the state has several (for
peers: the own state). A round of several messages is a generator: see `ServerAlgorithm`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from archipel.training.schedules import Rate
from archipel.tree import Tree
from archipel.vector import ParamSpec

Vector = Tensor  # [..., p]


class Blueprint(NamedTuple):
    """What is learnt, for algorithms that look inside the vector or at an example."""

    spec: ParamSpec  # names and shapes of the parameters in the vector
    shape: tuple[int, ...]  # of an example
    classes: int | None  # None where targets are not classes
    seed: int  # of the run, for first states that are drawn
    norms: tuple[str, ...] = ()  # names of the parameters of BatchNorm's layers
    degree: int = 0  # neighbours of a party, at most, where there is a graph that stays
    parties: int = 1  # n: of the federation that train
    kept: float = 1.0  # delta: share of |v|^2 that Q(v) keeps, where `me.coded` has a Q


class Batch(NamedTuple):
    """Some of a party's training points: drawn by `me.batch`, used by `me.grad` and `me.loss`."""

    rows: Tensor  # [m, b] positions in the party's data; padding repeats a valid position
    weights: Tensor  # [m, b] 1 / (points in the batch), and 0 for padding
    draw: Tensor  # [m] how many batches the party drew before it this round


class Examples(NamedTuple):
    """A party's own training points."""

    x: Tensor  # [..., b, *shape]
    y: Tensor  # [..., b, ...]
    weights: Tensor  # [..., b]: 1 / (points), and 0 for padding


class Descent(NamedTuple):
    """Where a party's local descent ended, and how far it went."""

    w: Vector
    steps: Tensor  # [..., 1] local steps taken
    travel: Tensor  # [..., 1] sum of the learning rates of these steps


class Near(NamedTuple):
    """Some other parties, as one knows them: d places, of which the last may be empty."""

    number: Tensor  # [..., d] of the party in each place; -1 in an empty one
    weight: Tensor  # [..., d, 1] of the edge to it, in a graph without directions; 0 where none is
    degree: Tensor  # [..., d, 1] the sum of the weights of all its edges
    told: Tree  # tree of [..., d, ...]: what it last told its neighbours; zeros in an empty place


class LocalWork(Protocol):
    """How a party trains between two messages: fields of the algorithm, of these names.

    `lr`, and where they differ from the default `local_epochs` (1), `local_steps` (instead of
    epochs), `batch_size` (None: all of a party's data) and `optimiser` (plain SGD).
    """

    @property
    def lr(self) -> Rate: ...


class Others(Protocol):
    """What a party knows of the others in a round, for protocols between them."""

    @property
    def session(self) -> bytes:
        """Names the study and the server's attempt at the round."""

    @property
    def least(self) -> int:
        """Parties in a sum, at the fewest, by the party's own policy."""

    @property
    def trial(self) -> bool:
        """Whether a round is only tried, with this party in every place."""

    @property
    def public(self) -> bytes:
        """The key that others know the party's signatures by."""

    @property
    def agreed(self) -> dict[int, frozenset[int]]:
        """By message of the round: the parties whose sum this one signed, in any attempt."""

    def sign(self, what: bytes) -> bytes:
        """The party's signature, 64 bytes, of something that it says."""

    def signed(self, by: int, signature: bytes, what: bytes) -> bool:
        """Whether another party signed this, by the key that this one knows it by."""


class Party(Protocol):
    """All that code at a party may use. Shapes carry the same leading dimensions as the vectors."""

    round: int  # t, from 0: the version of the shared state that the party was sent

    @property
    def n(self) -> Tensor:
        """`[..., 1]`: the number of local training examples."""

    @property
    def number(self) -> Tensor:
        """`[..., 1]`: of the party among all, what `uploads.present` knows it by."""

    @property
    def staleness(self) -> Tensor:
        """tau `[..., 1]`: server steps since the party was sent the shared state; 0 in rounds.

        It is known when the party has trained: ask for it after `descend`, before the upload.
        """

    @property
    def others(self) -> Others: ...

    @property
    def blueprint(self) -> Blueprint: ...

    def batch(self, size: int | float | None, going: Tensor | None = None) -> Batch:
        """Draw the next mini-batch: the data shuffled anew each epoch, the last batch short.

        A float is a fraction of the party's data, None all of it. Where `going` `[..., 1]` is
        false the batch is empty, and so is its gradient: for parties that have no step left.
        """

    def grad(self, w: Vector, batch: Batch | None = None) -> Vector:
        """Gradient of the mean loss over a batch; over all local training data without one."""

    def loss(self, w: Vector, batch: Batch | None = None) -> Tensor:
        """Mean loss `[..., 1]` over a batch; over all local training data without one."""

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
        """Repeat x <- x - lr (grad(x, batch) + shift + pull (x - towards)), from x = w.

        `work` (the algorithm) says for how many steps or epochs and with which optimiser; `towards`
        is w unless given; `only`, a mask `[p]`, says which parameters move (all unless given).
        `aside` is a second model beside the one whose change is sent: BatchNorm's statistics, where
        parties send them, are not of it. Engines fuse these steps; `training.descent.descend` is
        what they equal.
        """

    def steps(self, work: LocalWork) -> Tensor:
        """How many local steps the party takes, `[..., 1]`: fewer where it is a straggler."""

    def examples(self, batch: Batch | None = None) -> Examples:
        """The party's own points in a batch; all its training points without one."""

    def outputs(self, w: Vector, x: Tensor) -> Tensor:
        """What the model w says of x `[..., b, *shape]`, as when it is used."""

    def features(self, w: Vector, x: Tensor) -> Tensor:
        """What reaches the model's last layer, `[..., b, f]`."""

    def normal(self, like: Vector) -> Vector:
        """Standard normal noise, the party's own."""

    def noise(self, like: Vector) -> Vector:
        """Standard normal noise that protects people: of the operating system's generator.

        In a simulation it is drawn from the seed, so that a run can be repeated, and hides nothing.
        """

    def secret(self, purpose: str) -> Tensor:
        """32 bytes `[..., 32]` that nobody else knows, for one purpose: the same all round.

        They come from the operating system, drawn once a round. Between institutions they are on
        the party's disk before its first message leaves: after a crash it answers as before.
        """

    def mix(self, x: Vector) -> Vector:
        """sum_j W_ij x_j over neighbours and me, with the round's mixing matrix W."""

    def coded(self, x: Vector, held: Vector) -> Vector:
        """held + Q(x - held), for the next `me.mix`: what neighbours have of x, who had `held`.

        Q is the wire's steps, and its code is all that travels in that mix. It keeps a share of any
        vector: |v - Q(v)| <= |v|. Without steps Q is the identity, and x travels.
        """

    @property
    def near(self) -> Near:
        """The neighbours, with what each last told; in meetings, with nothing told."""

    @property
    def around(self) -> Tree:
        """The mean of what neighbours told, each by the weight of its edge; zeros without any."""

    @property
    def degree(self) -> Tensor:
        """`[..., 1]`: the sum of the weights of the party's edges."""

    @property
    def drawn(self) -> Near:
        """Other parties at random, neighbours or not, with what each tells when asked.

        They are as many as the algorithm's `asks(t)` says for round t.
        """

    def join(self, others: Near, weight: Tensor) -> None:
        """Have edges of these weights `[..., d, 1]` to these parties, at both ends; 0 for none."""

    def swap(self, x: Tree) -> Tree:
        """In a meeting: give the other of the two x, and get what it gives here."""

    @property
    def met(self) -> Tensor:
        """In a meeting: the other's place `[..., 1]` among `near`; d where it is none of them."""

    @property
    def woke(self) -> Tensor:
        """`[..., 1]`: 1 where the party woke by its own clock, 0 where another asked it to meet."""


class Uploads(Protocol):
    """What the server received. What the server sees is what the code asks for."""

    @property
    def sampled(self) -> int:
        """|S|: parties whose upload arrived."""

    @property
    def parties(self) -> int:
        """N: parties of the federation that train."""

    @property
    def present(self) -> Tensor:
        """`[|S|]`: the numbers of these parties. Fewer in a later message, where some are lost."""

    @property
    def n(self) -> Tensor:
        """`[|S|]`: how many examples each of them has. Parties tell it only where this is asked."""

    def mean(self, by_examples: bool = False) -> Tree:
        """Mean over parties, uniform or weighted by n_k: needs only a sum, never an individual."""

    def stack(self) -> Tree:
        """Every upload, one row per party: `[|S|, p]`, in a sweep as well, as `present` orders."""


def places(present: Tensor, among: Tensor) -> Tensor:
    """Where the parties of one message stand among those of an earlier one, `[|S|]`.

    >>> import torch
    >>> places(torch.tensor([7, 2]), among=torch.tensor([2, 5, 7])).tolist()
    [2, 0]
    """
    return (present.unsqueeze(-1) == among).nonzero()[:, 1]


class Each(NamedTuple):
    """A server's reply with one row per party, where a plain value goes to all."""

    rows: Tree  # tree of [|S|, ...]: for the parties of the upload that it answers


@runtime_checkable
class ServerAlgorithm(Protocol):
    """Two boxes, as in the papers. With `yield`, a round has several messages:

    `reply = yield upload` in `party` sends and waits, and ends in `return upload, own`;
    `uploads = yield reply` in `server` answers all parties with one value, or each with `Each`. A
    message may have a row for each party of the round; parties may be lost after any of them.
    `broadcast(shared)`, where there is one, is what parties get of the shared state; the rest never
    leaves the server. `init(w, blueprint)` may ask for the second argument, too. A class attribute
    `keeps_partial_work = True` has stragglers send what they have; without it the round goes on
    without them. With `asynchronous = True` nobody waits for anybody: parties send when they are
    done, whichever version of the shared state they began from, and `server` is called once there
    are `buffer` uploads, a field. What an upload is worth that comes late is the party's to say, by
    `me.staleness`, before it leaves: a server that sees sums alone could not.
    """

    def init(self, w: Vector) -> tuple[Tree, Tree]: ...  # shared, own

    def party(
        self, me: Party, shared: Tree, own: Tree
    ) -> tuple[Tree, Tree] | Generator[Tree, Tree, tuple[Tree, Tree]]: ...  # upload, own

    def server(
        self, shared: Tree, uploads: Uploads
    ) -> Tree | Generator[Tree, Uploads, Tree]: ...  # shared


class Personal(Protocol):
    """A server algorithm whose parties end up with a model of their own adds these methods.

    `personal` returns the model that a party uses, also one that never trained, from its training
    points. With `yield` it asks the server, whose `advise` answers all with one value, or each with
    `Each`, and changes nothing. Without `personal`, every party uses the shared model. `predict`,
    where there is one, says what a party's model w makes of new points x `[b, *shape]`; without it
    that is the model's output. `own` is whether they are the party's training points, all of them.
    """

    def personal(
        self, me: Party, shared: Tree, own: Tree
    ) -> Vector | Generator[Tree, Tree, Vector]: ...

    def advise(self, shared: Tree, uploads: Uploads) -> Tree: ...  # reply

    def predict(self, me: Party, w: Vector, x: Tensor, own: bool) -> Tensor: ...  # [b, ...]


@runtime_checkable
class PeerAlgorithm(Protocol):
    """One box: what a party does when it is its turn, which a class attribute `clock` says.

    - `"rounds"`, also where there is no such attribute: all parties in parallel, which talk to
      their neighbours by `me.mix`. With `tracks_mean = True` the algorithm needs that mixing keeps
      the sum over parties, and a rule is refused.
    - `"wakes"`: a party by itself, whenever its clock of random times says so, about once a round.
      It talks by what it tells: `told(own)` is what others hold of it, as `me.near` has it. When
      `party` has returned, that travels to its neighbours, or `said(own)` where there is such a
      method; they make `hear(told, said)` of it, which equals `told` of the new state. In rounds
      for which `asks(t)` is not 0 it asks so many other parties, `me.drawn`, in place of its
      neighbours. With `learns_graph = True` the graph is a part of the state, set by `me.join`.
    - `"meetings"`: a party that woke and one of its neighbours, both by the same code, which talk
      by `me.swap`. What is kept of each neighbour has `blueprint.degree` rows.
    - `"walk"`: whoever holds the token; see `WalkAlgorithm`.
    """

    def init(self, w: Vector) -> Tree: ...  # own

    def party(self, me: Party, own: Tree) -> Tree: ...  # own


@runtime_checkable
class WalkAlgorithm(Protocol):
    """One box, with a token: `clock = "walk"`. Only who holds it does anything, and passes it on.

    A field `tokens`, where there is one, says how many walk at the same time.
    """

    def init(self, w: Vector) -> tuple[Tree, Tree]: ...  # token, own

    def party(self, me: Party, token: Tree, own: Tree) -> tuple[Tree, Tree]: ...  # token, own


Algorithm = ServerAlgorithm | PeerAlgorithm | WalkAlgorithm
