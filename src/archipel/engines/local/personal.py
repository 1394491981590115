# SPDX-License-Identifier: Apache-2.0
"""Parties that make models of their own, for evaluation: at a worker, and at the server."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from archipel.core import Each, Vector
from archipel.engines.local.memory import Letterbox, Memory
from archipel.engines.local.pool import Json, Pool, shares
from archipel.errors import ArchipelError
from archipel.exchange.anatomy import Message
from archipel.exchange.boxes import Boxes
from archipel.exchange.talk import Talk
from archipel.rng import Ints
from archipel.tree import Tree, leaves, tree_map

if TYPE_CHECKING:
    from archipel.engines.local.share import Block, Job, Share


class Making:
    """A worker's parties between two questions to the server, until they have their models."""

    def __init__(self, share: Share, job: Job, memory: Memory) -> None:
        self._share, self._job, self._memory = share, job, memory
        self._blocks: list[Block] = []
        self._places: dict[int, int] = {}  # where each party's outputs go

    def handle(self, message: Json) -> Json:
        """Go on to the next question; with a model, write its outputs for the party's points."""
        number = int(message["number"])
        if number == 0:
            self._blocks = self._share.cut(message)
            self._places = dict(zip(message["ids"], message["at"], strict=True))
        spent = []
        for block in self._blocks:
            began, before = time.thread_time(), block.me.spent.copy()
            models = self.advance(block, number)
            seconds = time.thread_time() - began  # without what is done with the model
            gradients = (block.me.spent - before).tolist()
            spent.append((block.ids.tolist(), gradients, seconds))
            if models is not None:
                self._predict(block, models.expand(len(block.ids), self._job.model.p), message)
        return {"spent": spent}

    def advance(self, block: Block, number: int) -> Vector | None:
        """The models of the block's parties, or None while they wait for the server."""
        job, memory = self._job, self._memory
        if number == 0:
            shared, own = memory.sent.shared, self._share.own(block.ids)
            block.talk = Talk(job.boxes.personal(block.me, shared, own))
        else:
            each = job.anatomy.personal[number - 1].each
            advice = memory.sent.advice[number - 1]
            assert block.talk is not None
            block.talk.send(advice.take(block.places) if each else advice.take())
        if block.talk.ended:
            return cast(Vector, block.talk.said)
        form = job.anatomy.personal[number].upload
        found = [
            leaf.detach().expand(len(block.ids), *one.shape)
            for leaf, one in zip(leaves(block.talk.said), leaves(form), strict=True)
        ]
        memory.returned.asked[number].put(found, block.places)
        return None

    def _predict(self, block: Block, models: Vector, message: Json) -> None:
        data, outputs, own = self._job.data, self._memory.outputs, message["split"] == "train"
        for i, k in enumerate(block.ids.tolist()):
            train, _, test, _ = data.party(k)
            x, at = train if own else test, self._places[k]
            if len(x) == 0:
                continue
            buffers = block.me.buffers_for(i, models[i])
            if self._job.boxes.has_predict:
                me = self._share.one_party(k, block.me.round, buffers)
                outputs[at : at + len(x)] = self._job.boxes.predict(me, models[i], x, own)
                continue
            outputs[at : at + len(x)] = self._share.one.outputs(models[i], x, buffers)


def one(share: Share, job: Job, server: Server, k: int) -> tuple[Vector, Tensor | None]:
    """The model of party k alone, and the statistics that go with it."""
    making = Making(share, job, server.memory)
    (block,) = share.cut({"ids": [k], "places": [0], "effort": [1.0], "t": server.t})
    for number in range(len(job.anatomy.personal) + 1):
        models = making.advance(block, number)
        if models is not None:
            w = models.detach().expand(1, job.model.p)[0].clone()
            return w, block.me.buffers_for(0, w)
        server.answer(number, 1)
    raise AssertionError("a party asks as often as its anatomy says")


class Server:
    """Answers the parties' questions."""

    def __init__(
        self, boxes: Boxes, shared: Tree, memory: Memory, t: int, forms: Sequence[Message]
    ) -> None:
        self._boxes, self._shared, self.memory, self.t = boxes, shared, memory, t
        self._forms = forms  # of questions and answers

    def have_trained(self, ids: Ints) -> Any:
        """Which of these parties ever took part, `[m]`."""
        return self.memory.kept.visited.numpy()[ids] > 0

    def answer(self, number: int, count: int) -> None:
        """Put the reply to question `number` of `count` parties where they read it."""
        rows = self.memory.returned.asked[number].take(slice(count))
        reply = self._boxes.advise(self._shared, _Asked(rows, count))
        box, form = self.memory.sent.advice[number], self._forms[number].reply
        what = f"answer {number + 1} of {self._boxes.name}.advise"
        if isinstance(reply, Each):
            put(what, box, reply.rows, form, (count,), slice(count))
        else:
            put(what, box, reply, form, ())


def put(
    what: str, box: Letterbox, reply: Tree, form: Tree, lead: tuple[int, ...], at: Any = slice(None)
) -> None:
    """Put a reply where parties read it, if it has the form that it had before the first round."""
    got = [list(leaf.shape) for leaf in leaves(reply)]
    wanted = box.wanted(lead)
    if not (len(got) == len(wanted) and all(map(_alike, got, wanted))):
        before = [[*lead, *leaf.shape] for leaf in leaves(form)]
        raise ArchipelError(
            f"{what} has shapes {got}, where before the first round they were {before}: give it "
            "the same size whoever takes part, or a row to each with Each."
        )
    box.put(leaves(reply), at)


def _alike(shape: list[int], wanted: list[int | None]) -> bool:
    return len(shape) == len(wanted) and all(
        want in (None, side) for side, want in zip(shape, wanted, strict=True)
    )


class _Asked:
    """What parties ask: each stands for itself, and none is more than another."""

    def __init__(self, rows: Tree, count: int) -> None:
        self.sampled = self.parties = count
        self.present = torch.arange(count)
        self._rows = rows

    @property
    def n(self) -> Tensor:
        return torch.ones(self.sampled)

    def mean(self, by_examples: bool = False) -> Tree:
        return tree_map(lambda leaf: leaf.mean(dim=0), self._rows)

    def stack(self) -> Tree:
        return self._rows


class Costs:
    """What it took each of these parties to have a model of its own; NaN where it made none.

    Parties that work together share the time in proportion to their gradients, or evenly.
    """

    def __init__(self, parties: Ints) -> None:
        nothing = torch.full((len(parties),), torch.nan, dtype=torch.float64)
        self._parties = parties  # in ascending order
        self.gradients, self.seconds = nothing.clone(), nothing  # of examples; on one core

    def add(self, ids: Any, gradients: list[int], seconds: float) -> None:
        work = torch.tensor(gradients, dtype=torch.float64)
        share = work / work.sum() if work.sum() > 0 else torch.full_like(work, 1 / len(work))
        at = np.searchsorted(self._parties, ids)
        for spent, more in ((self.gradients, work), (self.seconds, seconds * share)):
            spent[at] = spent[at].nan_to_num() + more


def outputs(
    pool: Pool, job: Job, split: str, server: Server, costs: Costs, parties: Ints, ends: Ints
) -> None:
    """Have these parties make their own models, and write their outputs."""

    def run(messages: list[Json]) -> None:
        for answer in pool.run(messages):
            for spent in answer["spent"]:
                costs.add(*spent)

    before = np.concatenate([[0], ends[:-1]])
    n = job.data.n.numpy()[parties]
    virtual = job.data.virtual.numpy()[parties]
    able = np.flatnonzero((n > 0) & ~virtual)  # nobody uses a virtual party's model
    # those that trained and those that did not apart: what one does is not done for the other
    trained = server.have_trained(parties[able])
    together = [
        group[lo : lo + job.together]
        for group in _by_size(n, able[trained], able[~trained])
        for lo in range(0, len(group), job.together)
    ]
    for ids in together:
        dealt = shares(n[ids].tolist(), len(pool))
        messages = [
            {
                "do": "personal",
                "number": 0,
                "t": server.t,
                "split": split,
                "ids": parties[ids[share]].tolist(),
                "places": share,
                "effort": [1.0] * len(share),
                "at": before[ids[share]].tolist(),
            }
            for share in dealt
        ]
        run(messages)
        for number in range(len(job.anatomy.personal)):
            began = time.thread_time()
            server.answer(number, len(ids))
            costs.add(parties[ids], [0] * len(ids), time.thread_time() - began)
            run([{"do": "personal", "number": number + 1, "split": split} for _ in dealt])


def _by_size(n: Ints, *groups: Ints) -> list[Ints]:
    """Each group in order of size, so that a block's points need little padding."""
    return [group[np.argsort(-n[group], kind="stable")] for group in groups]
