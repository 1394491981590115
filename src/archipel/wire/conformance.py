# SPDX-License-Identifier: Apache-2.0
"""What every step must satisfy, ours or yours: `check_step(MyStep())`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archipel import rng
from archipel.errors import ArchipelError
from archipel.exchange.sender import Sender
from archipel.rng import Ints
from archipel.tree import Tree, fits, leaves, tree_map
from archipel.vector import ParamSpec
from archipel.wire.step import Step, Vectors, is_matrix
from archipel.wire.structured import Structured

_FORMS = (((5,),), ((7,), (2, 3)), ((9, 31), (3,)))  # of uploads that steps are tried on
_SIZES = (0.0, 1e-3, 1.0, 30.0, 1e4)  # about the numbers in them
_ROUNDS = 400  # of five parties: sends that a mean is taken over
_SIGMAS = 5


def check_step(step: Step) -> None:
    """Hold a step against what it says of itself; an AssertionError names what is not so."""
    name = type(step).__name__
    assert isinstance(step, Step), (
        f"{name} is no step: it needs linear, unbiased, init, send, receive and bound"
    )
    for check in (
        check_step_form,
        check_step_stacked_equals_looped,
        check_step_keyed,
        check_step_arguments_unchanged,
        check_step_state,
        check_step_linear,
        check_step_unbiased,
        check_step_bound,
    ):
        for shapes in _FORMS:
            try:
                check(step, _Uploads(step, shapes))
            except AssertionError as error:
                raise AssertionError(f"{name}: {check.__name__}: {error}") from None
            except ArchipelError as error:
                raise AssertionError(f"{name}: {check.__name__}: {error}") from None
            except Exception as error:
                said = f"{type(error).__name__}: {error}".splitlines()[0]
                raise AssertionError(f"{name}: {check.__name__}: {said}") from error


@dataclass(frozen=True)
class _Door:
    """What a step may use of the party that sends: noise of its own, each time another."""

    round: int
    ids: Ints
    lead: tuple[int, ...]
    drawn: list[int] = field(default_factory=list)

    def noise(self, like: Tensor) -> Tensor:
        self.drawn.append(1)
        count, size = len(self.drawn), like.shape[-1]
        rows = [rng.generator(self.round, int(k), count).standard_normal(size) for k in self.ids]
        noise = torch.from_numpy(np.stack(rows)).to(like.dtype)
        return noise.view(*self.lead[-1:], size).expand(*self.lead, size)


class _Uploads:
    """Uploads of one form in double precision, and those who send them."""

    def __init__(self, step: Step, shapes: tuple[tuple[int, ...], ...]) -> None:
        self.step = step
        self.form: Vectors = tuple(torch.zeros(shape, dtype=torch.float64) for shape in shapes)

    def me(self, *ids: int, lead: tuple[int, ...] | None = None, t: int = 0) -> Sender:
        """Parties in a round: one alone `()`, or a stack."""
        lead = ((len(ids),) if len(ids) > 1 else ()) if lead is None else lead
        parties = np.array(ids)
        door: Any = _Door(t, parties, lead)
        matrices = iter(range(len(self.form)))
        layers = [next(matrices) if x.dim() > 1 else -1 for x in self.form]
        return Sender(0, t, 0, parties, lead, door, layers=layers)

    def drawn(self, *lead: int, size: float = 1.0, seed: int = 0) -> Vectors:
        """Uploads `[*lead, *shape]`; with a size of 0, zeros."""
        random = np.random.default_rng(seed)
        return tuple(
            size * torch.from_numpy(random.standard_normal((*lead, *x.shape))) for x in self.form
        )

    def own(self, *lead: int) -> Tree:
        """First states."""
        return tree_map(lambda x: x.expand(*lead, *x.shape).clone(), self.step.init(self.form))

    def send(self, me: Sender, upload: Vectors, own: Tree) -> tuple[Tree, Tree]:
        """Have the step send an upload; of one that restricts training, what is trained there."""
        return self.step.send(me, self.trained(me, upload), own)

    def trained(self, me: Sender, upload: Vectors) -> Vectors:
        """What training at this party can come to: any upload, unless the step restricts it."""
        shapes = tuple(tuple(x.shape) for x in self.form if x.dim() > 1)
        if not isinstance(self.step, Structured) or not shapes:
            return upload
        names = tuple(map(str, range(len(shapes))))
        within = self.step.restrict(me, ParamSpec(names, shapes), torch.float64)
        matrices = [x for x in upload if is_matrix(x, me)]
        whole = within(torch.cat([x.flatten(-2) for x in matrices], dim=-1))
        parts = iter(whole.split([x.shape[-2] * x.shape[-1] for x in matrices], dim=-1))
        return tuple(next(parts).view(x.shape) if is_matrix(x, me) else x for x in upload)

    def received(self, me: Sender, payload: Tree) -> Vectors:
        """What arrives, where nobody has the sender's door."""
        return self.step.receive(replace(me, me=None), payload, self.form)


def check_step_form(step: Step, on: _Uploads) -> None:
    """What arrives has the form of what was sent, and what travels one that no value changes."""
    travels = None
    for size in _SIZES:
        payload, _ = on.send(on.me(0), on.drawn(size=size), on.own())
        form = [(leaf.dtype, leaf.shape) for leaf in leaves(payload)]
        assert travels in (None, form), (
            "the shapes or dtypes of what travels depend on the numbers in an upload"
        )
        travels = form
        arrives = on.received(on.me(0), payload)
        assert isinstance(arrives, tuple) and fits(on.form, list(arrives)), (
            "receive(send(upload)) has not the shapes and dtypes of the upload"
        )


def check_step_stacked_equals_looped(step: Step, on: _Uploads) -> None:
    """`[m, ...]` is every party by itself, and `[s, m, ...]` every setting, two rounds long."""
    own, swept, alone = on.own(3), on.own(2, 3), [on.own() for _ in range(3)]
    for t in range(2):
        uploads = on.drawn(2, 3, seed=t)
        me, many = on.me(0, 1, 2, t=t), on.me(0, 1, 2, lead=(2, 3), t=t)
        payload, own = on.send(me, tuple(x[0] for x in uploads), own)
        both, swept = on.send(many, uploads, swept)
        rows = [on.received(me, payload), own, payload]
        first = tree_map(lambda x: x[0], (on.received(many, both), swept, both))
        _close(leaves(tuple(rows)), leaves(first), "a setting of a sweep differs from a stack")
        for k in range(3):
            one = on.me(k, t=t)
            said, alone[k] = on.send(one, tuple(x[0, k] for x in uploads), alone[k])
            found = leaves((on.received(one, said), alone[k], said))
            mine = [leaf[k] for leaf in leaves(tuple(rows))]
            _close(mine, found, "a party alone differs from the same in a stack")


def check_step_keyed(step: Step, on: _Uploads) -> None:
    """What is drawn depends on seed, round and party, and on nothing else."""
    upload, rounds, common = on.drawn(), range(8), list[str]()

    def sent(k: int, t: int) -> list[Tensor]:
        me = on.me(k, t=t)
        watched = _Watched(
            me.seed, me.round, me.number, me.ids, me.lead, me.me, layers=me.layers, common=common
        )
        return leaves(on.send(watched, upload, on.own())[0])

    for t in rounds:  # global generators stand elsewhere each time
        assert _equal(sent(0, t), sent(0, t)), (
            "the same upload is sent otherwise the second time: draw with me.uniform or me.noise"
        )
    draws = any(not _equal(sent(0, 0), sent(0, t)) for t in rounds)
    apart = any(not _equal(sent(0, t), sent(1, t)) for t in rounds)
    assert apart or common or not draws, (
        "all parties draw the same numbers: use me.uniform, with common=True where that is meant"
    )


@dataclass(frozen=True)
class _Watched(Sender):
    """A sender that notes what all parties draw alike."""

    common: list[str] = field(default_factory=list)

    def uniform(self, size: int, purpose: str, common: bool = False) -> Tensor:
        self.common.extend([purpose] if common else [])
        return super().uniform(size, purpose, common)

    def bytes(self, size: int, purpose: str, common: bool = False) -> Tensor:
        self.common.extend([purpose] if common else [])
        return super().bytes(size, purpose, common)


def check_step_arguments_unchanged(step: Step, on: _Uploads) -> None:
    """`send` and `receive` write into nothing that they are given."""
    upload, own, me = on.drawn(3), on.own(3), on.me(0, 1, 2)
    for _ in range(2):
        before = [leaf.clone() for leaf in leaves((upload, own))]
        payload, after = on.send(me, upload, own)
        assert _equal(before, leaves((upload, own))), "send() wrote into its arguments"
        before = [leaf.clone() for leaf in leaves(payload)]
        on.received(me, payload)
        assert _equal(before, leaves(payload)), "receive() wrote into its arguments"
        own = after


def check_step_state(step: Step, on: _Uploads) -> None:
    """The own state keeps its form, and is all that a step goes on from: its bytes suffice."""
    own = on.own()
    for t in range(3):
        copy = tree_map(_through_bytes, own)
        payload, after = on.send(on.me(0, t=t), on.drawn(seed=t), own)
        again, same = on.send(on.me(0, t=t), on.drawn(seed=t), copy)
        assert fits(own, leaves(after)), "the own state changes its shapes or dtypes"
        assert _equal(leaves((payload, after)), leaves((again, same))), (
            "the own state does not survive its bytes: keep tensors in it, and nothing elsewhere"
        )
        own = after


def check_step_linear(step: Step, on: _Uploads) -> None:
    """Whether what comes of a sum of payloads is the sum of what comes of each, as stated."""
    own, whole, same = on.own(5), True, True
    for t in range(3):
        me = on.me(*range(5), t=t)
        upload = on.drawn(5, seed=t)
        payload, own = on.send(me, upload, own)
        same = same and _same(upload, leaves(payload))
        summed = tree_map(lambda leaf: leaf.sum(dim=0, dtype=leaf.dtype), payload)
        nobody = replace(me, ids=np.array([-1]), lead=())
        try:
            of_sum = on.received(nobody, summed)
        except Exception:  # of a sum it can make nothing
            of_sum = on.form
        sum_of = [x.sum(dim=0) for x in on.received(me, payload)]
        whole = whole and all(map(torch.allclose, of_sum, sum_of))
    says = "is not" if step.linear else "is"
    assert whole == step.linear or (whole and same), (
        f"linear = {step.linear} is stated, and what comes of a sum of payloads {says} the sum of "
        "what comes of each"
    )


def check_step_unbiased(step: Step, on: _Uploads) -> None:
    """On average over many sends, what arrives is what was sent, where that is stated."""
    if not step.unbiased:
        return
    for size in (1.0, 30.0):  # of smaller ones, what is rarely rounded up takes too many sends
        upload = on.drawn(size=size)
        stacked, errors = tuple(x.expand(5, *x.shape) for x in upload), []
        for t in range(_ROUNDS):
            me = on.me(*range(5), t=t)
            payload, _ = on.send(me, stacked, on.own(5))
            arrives, sent = on.received(me, payload), on.trained(me, stacked)
            apart = [(x - y).flatten(1) for x, y in zip(arrives, sent, strict=True)]
            errors.append(torch.cat(apart, dim=1).mean(dim=0))  # parties may draw alike
        error = torch.stack(errors)
        limit = _SIGMAS * error.std(dim=0) / len(error) ** 0.5 + 1e-9 * size
        limit = limit + _SIGMAS**2 / len(error) * error.abs().max()  # rare errors [Bernstein 1924]
        assert bool((error.mean(dim=0).abs() <= limit).all()), (
            f"unbiased = True is stated, and the mean of {5 * len(error)} sends is off by more "
            f"than {_SIGMAS} standard errors"
        )


def check_step_bound(step: Step, on: _Uploads) -> None:
    """No upload arrives with a larger norm than `bound` says, three rounds long."""
    for before in (None, 0.5, 20.0):
        bound = step.bound(before)
        if bound is None:
            continue
        for size in _SIZES:
            own = on.own()
            for t in range(3):
                upload = on.drawn(size=size, seed=t)
                long = float(torch.cat([x.flatten() for x in upload]).norm())
                shrink = 1.0 if before is None or long == 0 else before / long
                me = on.me(0, t=t)
                payload, own = on.send(me, tuple(shrink * x for x in upload), own)
                arrives = torch.cat([x.flatten() for x in on.received(me, payload)])
                assert float(arrives.norm()) <= bound * (1 + 1e-6), (
                    f"bound({before}) = {bound} is stated, and an upload arrives with the norm "
                    f"{float(arrives.norm()):.6g}"
                )


def _through_bytes(leaf: Tensor) -> Tensor:
    if leaf.numel() == 0:
        return leaf
    raw = bytearray(leaf.flatten().contiguous().view(torch.uint8).numpy().tobytes())
    return torch.frombuffer(raw, dtype=leaf.dtype).view(leaf.shape)


def _same(upload: Sequence[Tensor], payload: Sequence[Tensor]) -> bool:
    """Whether an upload travels as it is."""
    return len(upload) == len(payload) and all(map(torch.equal, upload, payload))


def _equal(expected: Sequence[Tensor], got: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


def _close(expected: Sequence[Tensor], got: Sequence[Tensor], what: str) -> None:
    for a, b in zip(expected, got, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-9, atol=1e-10, msg=lambda m: f"{what}: {m}")
