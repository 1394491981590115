# SPDX-License-Identifier: Apache-2.0
"""Whether an algorithm treats every party by itself, found before the first round.

Engines stack parties as they like, so code at a party must not look across the stack, nor draw
numbers that no key fixes: a run would then depend on the number of workers, without a word. Two
small parties therefore go through two rounds stacked, and again one at a time while the global
random generators stand elsewhere. Their gradients are those of a small quadratic, so that this
costs little whatever the model; one party's are a million times the other's, so that whatever
mixes them shows, also behind a threshold. Where they differ, the line is found that did it.

One file, since it is one experiment: `Twins` is the `me` of both parties at once, and answers every
call that an algorithm may make.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from archipel.core import Each
from archipel.data.federation import Federation
from archipel.engines.lines import Code, Line, Step, first_difference
from archipel.engines.local.settings import Settings
from archipel.engines.local.stacked import stacked_leaves
from archipel.engines.party import LocalParty
from archipel.engines.plan import threads
from archipel.engines.standin import (
    SIZES,
    Quadratic,
    double,
    restored,
    shrunk,
    small,
    stand_at,
    standing,
)
from archipel.errors import ArchipelError
from archipel.exchange.anatomy import examine
from archipel.exchange.neighbours import Trial
from archipel.exchange.talk import Talk
from archipel.exchange.uploads import Received
from archipel.models.model import Model
from archipel.tree import Tree, fill, leaves, tree_map

_ROUNDS = 2  # in the second the parties' states differ
_COPIES = 4  # of each upload: a server may want more than two
_LARGE = 50_000  # parameters, above which few stand for them
_SETTINGS = 2  # of a sweep, at most
_NEAR = 2  # neighbours, where there are no rounds
_DRAWS = 8  # further calls where a global generator was used: a coin may fall alike
# A reduction over parties changes numbers by their own size. Rounding does by 1e-16 (1e-7) of it,
# times what an algorithm's own steps make of that: a million times as much is allowed for.
_CLOSE = {torch.float64: 1e-9}
_ELSE = 1e-3


_SOUND: set[tuple[Any, ...]] = set()  # what was probed in this process, and found right


def probe_once(
    algorithm: Any,
    data: Federation,
    model: Model,
    seed: int,
    sweep: Mapping[str, Sequence[float]] | None,
) -> None:
    """Probe an algorithm that is not among ours, which the test suite probes, once in a process."""
    if type(algorithm).__module__.startswith("archipel.algorithms."):
        return
    fields, swept = repr(algorithm), tuple(sweep or ())
    about = model.spec.names, model.spec.shapes, data.shape, data.classes, model.dtype
    key = (type(algorithm), fields, swept, *about)
    if key not in _SOUND:
        probe(algorithm, data, model, seed, sweep)
        _SOUND.add(key)


def probe(
    algorithm: Any,
    data: Federation,
    model: Model,
    seed: int = 0,
    sweep: Mapping[str, Sequence[float]] | None = None,
) -> None:
    """Refuse an algorithm that mixes parties or draws without a key, and name the line."""
    values = {name: list(given)[:_SETTINGS] for name, given in (sweep or {}).items()}
    with restored(), threads(1):
        if model.dtype != torch.float64 or model.p > _LARGE:
            try:
                standin = shrunk(model) if model.p > _LARGE else double(model)
                Twins(algorithm, data, standin, seed, values).check()
                return
            except Exception:  # perhaps it is only that the code wants the model itself
                pass
        Twins(algorithm, data, model, seed, values).check()


class Call(NamedTuple):
    """A method of the algorithm, called for both parties or for one of them."""

    method: str
    algorithm: Any
    me: Callable[[], LocalParty]
    states: Callable[[], tuple[Tree, ...]]
    place: tuple[int, ...] = ()  # setting and party, where it is one


class Twins:
    """Two small parties: together, and each by itself."""

    def __init__(
        self,
        algorithm: Any,
        data: Federation,
        model: Model,
        seed: int,
        sweep: Mapping[str, Sequence[float]],
    ) -> None:
        self.name, self.code = type(algorithm).__name__, Code(algorithm)
        self.settings = Settings(algorithm, sweep, model.dtype)
        self.peer, self.clock = self.settings.together.peer, self.settings.together.clock
        self.model, self.seed, self.data = model, seed, small(data, model.dtype)
        self.close = _CLOSE.get(model.dtype, _ELSE)
        self.n = torch.tensor(SIZES, dtype=model.dtype)
        lead = () if self.settings.count is None else (self.settings.count,)
        self.lead = (*lead, len(SIZES))
        ramp = torch.arange(model.p, dtype=model.dtype)
        self.w = model.w + 0.01 * torch.cos(ramp)
        me, both = self._me(0, (0,), ()), 2 * _COPIES
        self.form = examine(self.settings.apart[0], me, self.w, both, both)
        self.places = [(a, i) for a in range(len(self.settings.apart)) for i in range(len(SIZES))]

    def check(self) -> None:
        """Go through the rounds."""
        shared, own = self._begin()
        for t in range(_ROUNDS):
            self._make_own(t, shared, own)
            shared, own = self._round(t, shared, own)
        self._make_own(_ROUNDS, shared, own)

    # -- rounds ------------------------------------------------------------------------------------

    def _begin(self) -> tuple[Tree, Tree]:
        """The first states, made twice."""
        me = self._me(0, (0,), ())
        one, other = (
            self._under(k, lambda: self.settings.first_states(self.w.clone(), me.blueprint))
            for k in range(2)
        )
        if not self._equal(one, other):
            first = self.settings.apart[0].init
            self._refuse_draws("init", lambda: first(self.w.clone(), me.blueprint))
        shared, own = one
        if self.settings.count is None:
            return shared, tree_map(lambda leaf: leaf.expand(len(SIZES), *leaf.shape), own)
        return shared, tree_map(
            lambda leaf: leaf.unsqueeze(1).expand(leaf.shape[0], len(SIZES), *leaf.shape[1:]), own
        )

    def _round(self, t: int, shared: Tree, own: Tree) -> tuple[Tree, Tree]:
        """One round of both; return the states after it."""
        sent = shared if self.peer else self.settings.broadcast(shared, t)
        both, each = self._calls("party", t, sent, own)
        if self.clock == "walk":
            ((_, state),) = self._compare(both, each, [])
            return shared, self._lead("the own state", state, self.form.own)
        if self.peer:
            (state,) = self._compare(both, each, [])
            return None, self._lead("the own state", state, self.form.own)
        serving = None
        heard: list[Tree] = []
        replies: list[Tree] = []

        def answer(upload: Tree, last: bool) -> Any:
            nonlocal serving
            heard.append(tree_map(lambda leaf: leaf.detach().clone(), upload))
            received = self._received(upload, self.form.messages[len(replies)].upload)
            if serving is None:
                serving = self.settings.serve(shared, received)
            else:
                serving.send(received)
            replies.append(serving.said(last))
            return replies[-1]

        said = self._compare(both, each, replies, answer)
        self._repeat_server(shared, heard, replies)
        return replies[-1], self._lead("the own state", said[-1][1], self.form.own)

    def _make_own(self, t: int, shared: Tree, own: Tree) -> None:
        """Have both make models of their own; they may ask the server."""
        if self.settings.count is not None or not self.settings.together.has_personal:
            return
        (algorithm,) = self.settings.apart
        both, each = self._calls("personal", t, self.settings.broadcast(shared, t), own)
        replies: list[Tree] = []

        def answer(asked: Any, last: bool) -> Any:
            if last:
                return None
            form = self.form.personal[len(replies)].upload

            def advise() -> Tree:
                return algorithm.advise(shared, self._received(asked, form))

            replies.append(advise())
            if not self._equal(_plain(replies[-1]), _plain(advise())):
                self._refuse_draws("advise", advise)
            return replies[-1]

        models = self._compare(both, each, replies, answer)[-1]
        if algorithm.has_predict and t == _ROUNDS:
            me = self._me(t, (0,), ())
            w, x = models.expand(len(SIZES), -1)[0], me.examples().x
            one, other = (
                self._under(k, lambda: algorithm.predict(me, w, x, True)) for k in range(2)
            )
            if not self._equal(one, other):
                self._refuse_draws("predict", lambda: algorithm.predict(me, w, x, True))

    def _received(self, upload: Tree, form: Tree) -> Received:
        """Both uploads, as a server gets them; one party's has this form."""
        at, n = len(self.lead) - 1, self.n.repeat(_COPIES)
        rows = tree_map(
            lambda leaf: torch.cat([leaf] * _COPIES, dim=at), self._lead("an upload", upload, form)
        )
        by_n = tree_map(lambda leaf: _weighted(leaf, n, len(self.lead)), rows)
        ones = tree_map(lambda leaf: leaf.sum(dim=at), rows)
        sums: Any = {"mean": ones, "mean by examples": by_n}
        return Received(torch.arange(len(n)), len(n), sums, float(n.sum()), rows, n)

    def _lead(self, what: str, tree: Tree, form: Tree) -> Tree:
        """A tree as `[..., 2, ...]`: code may leave out what is alike for all parties."""
        return fill(form, stacked_leaves(f"{self.name}: {what}", tree, form, self.lead))

    # -- calls -------------------------------------------------------------------------------------

    def _calls(self, method: str, t: int, sent: Tree, own: Tree) -> tuple[Call, list[Call]]:
        """A method for both parties, and for each."""
        swept = self.settings.count is not None
        given = tree_map(lambda leaf: leaf.unsqueeze(1), sent) if swept else sent

        def states(sent: Tree, own: Tree) -> tuple[Tree, ...]:
            copied = tree_map(Tensor.clone, (sent, own))
            return (copied[1],) if self.peer and self.clock != "walk" else tuple(copied)

        everybody = tuple(range(len(SIZES)))
        both = Call(
            method,
            self.settings.together,
            lambda: self._me(t, everybody, self.lead),
            lambda: states(given, own),
        )
        each = [
            Call(
                method,
                self.settings.apart[a],
                partial(self._me, t, (i,), ()),
                partial(states, self.settings.split(sent)[a], self._row(own, at)),
                (a, i),
            )
            for a, i in self.places
            for at in [(a, i) if swept else (i,)]
        ]
        return both, each

    def _row(self, tree: Tree, at: tuple[int, ...]) -> Tree:
        return tree_map(lambda leaf: leaf[at], tree)

    def _compare(
        self,
        both: Call,
        each: list[Call],
        replies: list[Tree],
        answer: Callable[[Any, bool], Any] = lambda upload, last: None,
    ) -> list[Any]:
        """Call for both and for each, and refuse a difference; what both said, message by message.

        `answer` is the server, and `replies` what it has said so far.
        """
        try:
            said, _ = self._play(both, 0, answer)
        except ArchipelError:
            raise
        except Exception as error:
            self._play(each[0], 1, self._retold(replies))  # fails by itself: let it say so
            line = self.code.blame(error.__traceback__)
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ArchipelError(
                f"{self.name}.{both.method} runs on one party and fails on a stack of parties"
                + (f": {line}" if line else "")
                + f": {reason}; leading dimensions are parties: name the last one."
            ) from error
        for k, one in enumerate(each):
            retold = self._retold(replies)
            alone, drew = self._play(one, 1 + k, retold)
            again = range(100, 100 + _DRAWS) if drew else ()
            if any(not self._equal(alone, self._play(one, seed, retold)[0]) for seed in again):
                self._refuse_draws(both.method, partial(self._play, one, None, retold))
            if not self._alike(said, alone, one.place):
                self._refuse(both, one, alone, answered=retold, replies=replies)
        return said

    def _play(
        self, call: Call, seed: int | None, answer: Callable[[Any, bool], Any]
    ) -> tuple[list[Any], bool]:
        """All that a call says, and whether it drew from a global generator."""
        if seed is not None:
            stand_at(seed)
        me, states = call.me(), call.states()
        before, given = standing(), tree_map(Tensor.clone, states)
        talk, said = Talk(getattr(call.algorithm, call.method)(me, *states)), []
        while True:
            value = talk.said
            said.append(value)
            upload = value[0] if talk.ended and self._pairs(call) else value
            reply = answer(upload, talk.ended)
            if talk.ended:
                break
            talk.send(self._reply(call, reply))
        drew = standing() != before
        if not all(_near(a, b, 0.0) for a, b in zip(leaves(states), leaves(given), strict=True)):
            raise ArchipelError(
                f"{self.name}.{call.method} writes into the states it is given, which others use: "
                "make new tensors (x = x + y rather than x += y)."
            )
        return said, drew

    def _pairs(self, call: Call) -> bool:
        """Whether a method returns an upload and a state."""
        return call.method == "party" and not self.peer

    def _reply(self, call: Call, reply: Tree) -> Tree:
        """A reply as a call gets it."""
        each, rows = isinstance(reply, Each), _plain(reply)
        if call.place:
            a, i = call.place
            mine = self.settings.split(rows)[a]
            return tree_map(lambda leaf: leaf[i].clone() if each else leaf.clone(), mine)
        if self.settings.count is not None and not each:
            return tree_map(lambda leaf: leaf.unsqueeze(1), rows)
        both = (*[slice(None)] * (len(self.lead) - 1), slice(len(SIZES)))
        return tree_map(lambda leaf: leaf[both].clone() if each else leaf.clone(), rows)

    def _retold(self, replies: list[Tree]) -> Callable[[Any, bool], Any]:
        """The server, as it answered both."""
        left: list[Any] = []

        def answer(_: Any, last: bool) -> Any:
            if not left:
                left.extend(replies)
            reply = left.pop(0) if left else None
            if last:
                left.clear()
            return reply

        return answer

    def _repeat_server(self, shared: Tree, heard: list[Tree], replies: list[Tree]) -> None:
        """Run the server again with the same uploads and other generators."""

        def again() -> list[Any]:
            forms = [message.upload for message in self.form.messages]
            uploads = [self._received(*pair) for pair in zip(heard, forms, strict=True)]
            serving = self.settings.serve(shared, uploads[0])
            said = [serving.said(len(uploads) == 1)]
            for number, received in enumerate(uploads[1:], 2):
                serving.send(received)
                said.append(serving.said(number == len(uploads)))
            return said

        said = self._under(7, again)
        if not self._equal([*map(_plain, said)], [*map(_plain, replies)]):
            self._refuse_draws("server", again)

    # -- what is found -----------------------------------------------------------------------------

    def _refuse(
        self, both: Call, one: Call, alone: list[Any], answered: Any, replies: list[Tree]
    ) -> None:
        """Say what made a party differ from itself."""
        again, _ = self._play(one, 50, answered)
        if not self._equal(again, alone):
            self._refuse_draws(both.method, lambda: self._play(one, None, answered))
        together, apart = list[Step](), list[Step]()
        for call, found in ((both, together), (one, apart)):
            with self.code.followed(found):
                self._play(call, 50, self._retold(replies))
        line = first_difference(together, apart, lambda a, b: self._same(a, b, one.place))
        raise ArchipelError(
            f"{self.name}.{both.method} mixes parties: {_at(line)} gives a party another value in "
            "a stack than alone; leading dimensions are parties, so name the last one in every "
            "reduction (dim=-1, keepdim=True)."
        )

    def _refuse_draws(self, method: str, call: Callable[[], Any]) -> None:
        """Name the line that gives another value each time."""
        line, first = None, list[Step]()
        for seed in range(1000, 1000 + 8 * _DRAWS):
            steps: list[Step] = []
            stand_at(seed)
            with self.code.followed(steps):
                call()
            first = first or steps
            line = first_difference(first, steps, lambda a, b: _near(a, b, self.close))
            if line is not None:
                break
        remedy = (
            "draw with me.normal(like=x), which seed, round and party fix"
            if method in ("party", "personal", "predict")
            else "draw from a generator with a seed of its own, such as one made with "
            "torch.Generator().manual_seed(...) from blueprint.seed and the state"
        )
        raise ArchipelError(
            f"{self.name}.{method} gives another result each time: {_at(line)} depends on more "
            f"than its arguments, such as a global random generator; {remedy}."
        )

    def _under(self, seed: int, call: Callable[[], Any]) -> Any:
        stand_at(seed)
        return call()

    def _equal(self, one: Any, other: Any) -> bool:
        return all(
            _near(a, b, self.close)
            for a, b in zip(leaves(_tuple(one)), leaves(_tuple(other)), strict=True)
        )

    def _alike(self, both: list[Any], alone: list[Any], place: tuple[int, ...]) -> bool:
        """Whether all that both said is, for one party, what it says alone."""
        together, single = leaves(_tuple(both)), leaves(_tuple(alone))
        if len(together) != len(single):
            return False
        at = place if self.settings.count is not None else place[1:]
        for a, b in zip(together, single, strict=True):
            try:
                row = a.detach().expand(*self.lead, *b.shape)[at]
            except RuntimeError:
                return False
            if not _near(row, b, self.close):
                return False
        return True

    def _same(self, together: Tensor, alone: Tensor, place: tuple[int, ...]) -> bool:
        """The same of a value inside a method, whose form is the algorithm's matter."""
        at = place if self.settings.count is not None else place[1:]
        extra = together.dim() - alone.dim()
        if extra == len(self.lead):
            sizes = together.shape[:extra]
            if all(size in (1, full) for size, full in zip(sizes, self.lead, strict=True)):
                together = together[
                    tuple(k if n > 1 else 0 for k, n in zip(at, sizes, strict=True))
                ]
        elif extra == 0 and together.shape != alone.shape and alone.shape[:1] == (1,):
            together, alone = together[at[-1]], alone[0]
        if together.shape != alone.shape:
            return self.settings.count is not None  # what a sweep makes of a number has any form
        return _near(together, alone, self.close)

    # -- small parts -------------------------------------------------------------------------------

    def _me(self, t: int, ids: tuple[int, ...], lead: tuple[int, ...]) -> LocalParty:
        way = Quadratic(ids, self.settings.count if lead and self.settings.count else 1)
        buffers = self.model.buffers.expand(len(ids), -1).clone()
        return LocalParty(
            self.data,
            self.model,
            way,
            np.array(ids, np.int64),
            self.seed,
            t,
            lead,
            buffers=buffers if self.model.buffer_spec.size else None,
            mixing=(lambda x: x) if self.peer else None,
            neighbours=self._neighbours(t, lead),
            edges=_NEAR,
        )

    def _neighbours(self, t: int, lead: tuple[int, ...]) -> Trial | None:
        """Those that both have, where there are no rounds and the first states are known."""
        if self.clock == "rounds" or not hasattr(self, "form"):
            return None
        asked = self.settings.apart[0].asks(t)
        return Trial(self.form.told, _NEAR, asked, self.model.dtype, lead)


def _weighted(leaf: Tensor, n: Tensor, lead: int) -> Tensor:
    """Sum over parties, weighted: `[..., m, *one] -> [..., *one]`."""
    weights = n.view(-1, *[1] * (leaf.dim() - lead))
    return (leaf * weights).sum(dim=lead - 1)


def _plain(reply: Tree) -> Tree:
    return reply.rows if isinstance(reply, Each) else reply


def _tuple(found: Any) -> Tree:
    return tuple(found) if isinstance(found, list) else found


def _near(a: Tensor, b: Tensor, close: float) -> bool:
    """Whether two tensors are the same but for rounding, of the size of the larger."""
    if a.shape != b.shape:
        return False
    a, b = a.detach().to(torch.float64), b.detach().to(torch.float64)
    apart, size = (a - b).abs(), torch.maximum(a.abs(), b.abs())
    finite = torch.isfinite(a) & torch.isfinite(b)
    if not torch.equal(torch.isfinite(a), torch.isfinite(b)):
        return False
    if not bool(finite.any()):
        return True
    return bool(apart[finite].max() <= close * size[finite].max())


def _at(line: Line | None) -> str:
    return "one of its lines" if line is None else str(line)
