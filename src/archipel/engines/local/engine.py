# SPDX-License-Identifier: Apache-2.0
"""The local engine: all parties of a simulation on one machine, stacked and in worker processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from archipel.core import Algorithm, Each, Vector
from archipel.data.federation import Federation
from archipel.engines import plan as planning
from archipel.engines.checks import check_algorithm_fields, check_fit, check_sweep
from archipel.engines.engine import Cause, Evaluation, Floats, Outcome
from archipel.engines.local import personal
from archipel.engines.local.device import CPU, check_device, on_device, plan_for
from archipel.engines.local.evaluation import chunk_of, evaluate
from archipel.engines.local.pool import Pool, shares
from archipel.engines.local.settings import Received, Settings
from archipel.engines.local.share import Job, Memory, Share
from archipel.engines.party import LocalParty, blueprint
from archipel.engines.plan import Plan, threads
from archipel.engines.probe import probe_once
from archipel.errors import ArchipelError, RunFailed
from archipel.exchange import statistics
from archipel.exchange.anatomy import Anatomy, examine, has_personal, is_peer, same_form
from archipel.models.model import Model
from archipel.rng import Ints
from archipel.tree import fill, first, leaves, tree_map

if TYPE_CHECKING:
    from archipel.graphs import Topology


_TOGETHER = 256 << 20  # bytes of the models that parties make at a time


def _bad(answers: list[dict[str, Any]]) -> Ints:
    """Parties whose numbers are not finite."""
    return np.array(sorted(k for answer in answers for k in answer["bad"]), np.int64)


def _diverged(bad: Ints) -> dict[int, Cause]:
    return dict.fromkeys(bad.tolist(), Cause("diverged"))


class LocalEngine:
    """Runs rounds of an algorithm over a federation; use it in a `with` block.

    `sweep` runs several settings side by side, such as `{"lr": [0.1, 0.03]}`: vectors are then
    `[s, m, p]` and the result equals s separate runs.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        data: Federation,
        model: Model,
        *,
        seed: int = 0,
        topology: Topology | None = None,
        workers: int | None = None,
        plan: Plan | None = None,
        sweep: Mapping[str, Sequence[float]] | None = None,
        device: str = CPU,
    ) -> None:
        data = data.as_trained()
        self.algorithm, self.data, self.seed = algorithm, data, seed
        check_device(device, workers)
        check_algorithm_fields(algorithm)
        self.peer = is_peer(algorithm)
        if topology is not None and not self.peer:
            raise ArchipelError(
                f"topology '{topology.name}': {type(algorithm).__name__} has a server and mixes "
                "with nobody; leave the topology out, or take an algorithm such as dsgd."
            )
        if self.peer and topology is not None and topology.n != data.training:
            raise ArchipelError(
                f"the topology joins {topology.n} parties but {data.training} take part in "
                f"training: make one with n = {data.training}."
            )
        self._swept, count = check_sweep(algorithm, sweep)
        if count is not None and model.buffer_spec.size:
            raise ArchipelError(
                "a sweep needs a model without buffers such as BatchNorm's statistics: run its "
                "settings one after another, or use GroupNorm."
            )
        check_fit(model, data)
        if device == CPU:
            batch_size = getattr(algorithm, "batch_size", None)
            self.plan = plan or planning.choose(model, data, batch_size, workers)
            right = planning.ways(model, data, self.plan.way)
        else:
            model, right = on_device(model, data, device)
            self.plan = replace(plan, workers=1) if plan else plan_for(right)
        self.model = model
        if self.plan.way not in right:  # remembered for another module that prints the same
            self.plan = Plan("one", 1, self.plan.workers)
        draws, separable = model.one.draws(data.x[:2]), planning.separable(model, data)
        joined = topology is not None
        told = statistics.joined(algorithm, model, joined)
        self._settings = Settings(told, self._swept, model.dtype)
        self._eligible = np.flatnonzero(data.n[: data.training].numpy() > 0)
        self.anatomy, mixed = self._examine(draws, joined)
        self._mixed_bytes = sum(mixed) * model.w.element_size()
        shared, own = self.anatomy.shared, self.anatomy.own
        if count is not None:
            shared, own = self._settings.first_states(model.w, blueprint(model, data, seed))
        output = model.predict(model.w, data.x[:1], model.buffers)[0]
        self._job = Job(
            self._settings.together,
            data,
            model,
            right[self.plan.way],
            self.plan,
            seed,
            count,
            self.anatomy,
            own,
            draws,
            separable,
            topology,
            output,
            chunk_of(data, output),
            max(self.plan.workers, min(64, _TOGETHER // (4 * model.p))),
            statistics.keep_own(algorithm, model, joined),
        )
        board = max([model.p, *mixed]) if self.peer and topology is not None else 0
        self._memory = Memory(self._job, board)
        self.shared = tree_map(Tensor.clone, shared)
        self._done = 0  # rounds: the one in which parties make models of their own
        self._pool: Pool | None = None

    # -- life ------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._pool is not None:
            raise ArchipelError("the engine is running already: enter it once.")
        probe_once(self.algorithm, self.data, self.model, self.seed, self._swept)
        self._pool = Pool(
            self.plan.workers, lambda index, call: Share(self._job, self._memory, index, call)
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    @property
    def pool(self) -> Pool:
        if self._pool is None or self._pool.closed:
            raise ArchipelError(
                "the engine is not running, or was interrupted: use it anew, 'with engine: ...'."
            )
        return self._pool

    # -- one round -------------------------------------------------------------------------------

    def round(
        self,
        t: int,
        parties: Sequence[int] | Ints,
        effort: Floats | None = None,
        *,
        answers: Ints | None = None,
        needed: int = 1,
        enough: int | None = None,
        unheard: int = 0,
    ) -> Outcome:
        """Run round t with these parties: `archipel.engines.engine.Engine.round`.

        Here nobody is waited for, so `enough` has no say.
        """
        ids = np.asarray(parties, np.int64)
        done = np.ones(len(ids)) if effort is None else np.asarray(effort, np.float64)
        messages = [{**message, "undo": needed > 1} for message in self._deal(t, ids, done)]
        before, self._done = self._done, t + 1
        with threads(1):
            if self.peer:
                outcome = self._peer_round(t, ids, messages, needed)
            else:
                outcome = self._server_round(t, ids, messages, needed, unheard)
            if 0 < len(ids) - len(outcome.diverged) < needed:
                self._done = before
                self.pool.run([{"do": "undo"} for _ in messages])
        return outcome

    def _server_round(
        self, t: int, ids: Ints, messages: list[dict[str, Any]], needed: int, unheard: int
    ) -> Outcome:
        if len(ids) == 0:
            return Outcome(ids)
        self._send()
        gradients, serving, heard = 0, None, ids[:0]
        for number in range(len(self.anatomy.messages)):
            if number:
                messages = [{"do": "round", "undo": needed > 1} for _ in messages]
            answers = self.pool.run([{**message, "number": number} for message in messages])
            gradients += sum(answer["gradients"] for answer in answers)
            bad = _bad(answers)
            if 0 < len(ids) - len(bad) < needed:
                return Outcome(ids[:0], _diverged(bad), gradients)
            if serving is None:
                heard = np.flatnonzero(~np.isin(ids, bad))  # places of the rows of the round
                serving = self._settings.serve(self.shared, self._received(0, ids, heard, answers))
            else:
                serving.send(self._received(number, ids, heard, answers))
            last = number == len(self.anatomy.messages) - 1
            said = serving.said(last)
            if not last:
                self._answer(number, said, heard)
        self._check(t, said, ids, bad)
        self.shared = said
        arrived = ids[~np.isin(ids, bad)]
        up, down = self.anatomy.bytes_up, self.anatomy.bytes_down
        return Outcome(
            arrived, _diverged(bad), gradients, up * len(arrived), down * (len(ids) + unheard)
        )

    def _peer_round(
        self, t: int, ids: Ints, messages: list[dict[str, Any]], needed: int
    ) -> Outcome:
        answers = self.pool.run([{**message, "present": ids.tolist()} for message in messages])
        bad = _bad(answers)
        if len(bad) and (self._job.topology is not None or len(bad) == len(ids)):
            raise RunFailed(
                f"round {t + 1}: the model of party {self.data.name(int(bad[0]))} is no longer "
                "finite: lower lr."
            )
        gradients = sum(answer["gradients"] for answer in answers)
        arrived = ids[~np.isin(ids, bad)]
        if len(arrived) < needed:
            return Outcome(ids[:0], _diverged(bad), gradients)
        sent = 0
        if self._job.topology is not None:
            absent = np.setdiff1d(np.arange(self.data.training), arrived)
            sent = 2 * len(self._job.topology.edges(t, absent)) * self._mixed_bytes
        return Outcome(arrived, _diverged(bad), gradients, sent, sent)

    def _send(self) -> None:
        """Put what parties get of the shared state where they read it."""
        tree_map(Tensor.copy_, self._memory.shared, self._settings.broadcast(self.shared))

    def _deal(self, t: int, ids: Ints, effort: Any) -> list[dict[str, Any]]:
        """Give every worker parties of about the same work, the largest first."""
        cost = (self.data.n[ids].numpy() * effort).tolist()
        return [
            {
                "do": "round",
                "t": t,
                "ids": ids[share].tolist(),
                "places": share,
                "effort": effort[share].tolist(),
            }
            for share in shares(cost, len(self.pool))
        ]

    def _received(
        self, number: int, ids: Ints, heard: Ints, answers: list[dict[str, Any]]
    ) -> Received:
        """Upload number `number`; a party lost since the first has a row of zeros in a stack."""
        memory = self._memory
        sums = {
            ask: tree_map(lambda *parts: sum(parts[1:], parts[0].clone()), *by_worker)
            for ask, by_worker in memory.sums[number].items()
        }
        rows = memory.stacks[number]
        if rows is not None:
            rows = tree_map(lambda leaf: leaf[heard], rows)
            for leaf in leaves(rows):
                leaf[np.isin(ids[heard], _bad(answers))] = 0
            rows = self._job.stacked(rows)
        count = sum(answer["count"] for answer in answers)
        if count == 0:
            raise RunFailed(
                "the update of every sampled party is not finite: lower lr, "
                "or check the data for extreme values."
            )
        total_n = sum(answer["n"] for answer in answers)
        return Received(count, len(self._eligible), total_n, sums, rows)

    def _answer(self, number: int, reply: Any, places: Ints) -> None:
        """Put the server's reply where the workers read it; `places` are the parties heard of."""
        store, swept = self._memory.replies[number], self._job.sweep
        lead = () if swept is None else (swept,)
        what = f"reply {number + 1} of {type(self.algorithm).__name__}.server"
        if not isinstance(reply, Each):
            personal.put(what, store, reply, self.anatomy.messages[number].reply, lead)
            return
        for rows in leaves(reply.rows):
            if len(rows if swept is None else rows[0]) != len(places):
                raise ArchipelError(
                    f"Each holds {len(rows)} rows for {len(places)} uploads: give one row each."
                )
        rows = self._job.stacked(reply.rows)
        form, lead = self.anatomy.messages[number].reply, (len(places), *lead)
        personal.put(what, store, rows, form, lead, places)

    def _check(self, t: int, shared: Any, ids: Ints, bad: Ints) -> None:
        """Refuse a result of another form, and one of which no setting is finite."""
        swept = self._job.sweep
        what = f"{type(self.algorithm).__name__}.server"
        same_form(what, self.anatomy.shared, shared, 0 if swept is None else 1)
        finite = torch.ones(swept or 1, dtype=torch.bool)
        for leaf in leaves(shared):
            rows = leaf.reshape(swept or 1, -1)
            if not torch.isfinite(rows.sum(dim=1)).all():  # quicker than a look at every number
                finite &= torch.isfinite(rows).all(dim=1)
        if not finite.any():
            raise RunFailed(
                f"round {t + 1}: the shared model is no longer finite after "
                f"{len(ids) - len(bad)} uploads: lower lr or server_lr."
            )

    def state(self) -> dict[str, Tensor]:
        """All that the next round depends on besides its number: a checkpoint."""
        shared = {f"shared.{i}": leaf.clone() for i, leaf in enumerate(leaves(self.shared))}
        return {**shared, **self._memory.kept(), "done": torch.tensor([self._done])}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a checkpoint of an engine made alike."""
        here = {name: leaf for name, leaf in self.state().items() if name != "done"}
        for name, tensor in here.items():
            skip = 0 if name.startswith("shared.") else 1  # a row per party that took part
            found = state.get(name)
            rows = len(state["visited"]) if skip and "visited" in state else None
            if (
                found is None
                or found.dtype != tensor.dtype
                or found.shape[skip:] != tensor.shape[skip:]
                or (rows is not None and len(found) != rows)
            ):
                raise ArchipelError(
                    f"the checkpoint does not fit {type(self.algorithm).__name__} on this model: "
                    f"'{name}' differs; resume with the study that began."
                )
        ids = state["visited"]
        if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < self.data.parties):
            raise ArchipelError("the checkpoint names parties that do not exist: it is damaged.")
        self.restore_shared(state)
        self._memory.restore(state)
        self._done = int(state["done"]) if "done" in state else self._done  # older ones lack it

    def restore_shared(self, state: Mapping[str, Tensor]) -> None:
        """Take the shared state alone: all that there is of a run whose parties are elsewhere."""
        count = len(leaves(self.shared))
        self.shared = fill(self.shared, [state[f"shared.{i}"].clone() for i in range(count)])

    # -- what has been learnt ----------------------------------------------------------------------

    def vector(self, setting: int | None = None) -> Vector:
        """The model `[p]`: the shared one, or the mean of the peers' models."""
        mean = self.own_models().mean(dim=0) if self.peer else first(self.shared)
        return mean if setting is None else mean[setting]

    def own_models(self, parties: Sequence[int] | Ints | None = None) -> Tensor:
        """The own models of peers, a row each: of all that have training points, or of these."""
        return first(self.own_states(self._eligible if parties is None else parties))

    def own_states(self, parties: Sequence[int] | Ints) -> Any:
        """The own states of these parties, a row each."""
        return self._memory.own_of(parties)

    def own_model(self, k: int) -> tuple[Vector, Tensor | None]:
        """The model `[p]` that party k uses, and its statistics: its own, or the shared one."""
        share = Share(self._job, self._memory, 0, lambda: None)
        with threads(1):
            if self.peer or not self.has_own:
                w = self.own_models([k])[0] if self.peer else self.vector()
                self._use(None)
                return w.clone(), share.statistics(k, w)
            self._send()
            server = self._answering()
            return personal.one(share, self._job, server, k)

    def _answering(self) -> personal.Server:
        """The server, to parties that make models of their own."""
        forms, told = self.anatomy.personal, self._settings.together
        return personal.Server(told, self.shared, self._memory, self._done, forms)

    def buffers(self) -> Tensor | None:
        """Buffers `[q]` that go with the shared vector; None where the model has none.

        Where parties keep their own statistics it is the mean of those that took part.
        """
        model = self.model
        if not model.buffer_spec.size:
            return None
        if self.own_statistics:
            seen = torch.nonzero(self._memory.visited)[:, 0]
            return self._memory.buffers[seen].mean(dim=0) if len(seen) else None
        if not len(model.running):
            return model.buffers
        own = self.own_states(self._eligible).statistics.mean(dim=0) if self.peer else None
        return model.buffers_with(self.shared.statistics if own is None else own)

    @property
    def own_statistics(self) -> bool:
        """Whether every party keeps BatchNorm's statistics, so that the model differs by party."""
        return self._job.own_statistics

    def _use(self, buffers: Tensor | None) -> None:
        """Put the buffers that go with a vector where workers read them: the shared, or these."""
        found = self.buffers() if buffers is None else buffers
        if found is not None:
            self._memory.used.copy_(found)

    def evaluate(
        self,
        w: Vector | None = None,
        split: Literal["test", "train"] = "test",
        *,
        own: bool = False,
        training: int | None = None,
        buffers: Tensor | None = None,
    ) -> Evaluation:
        """Metrics on every party's points: of one vector, or with `own` of each party's model.

        The first `training` parties are pooled together, those that train unless given. `buffers`
        go with w; without them those that go with the shared vector, or that each party keeps.
        """
        if own and (not self.has_own or self._job.sweep is not None):
            raise ArchipelError(
                f"own=True: {type(self.algorithm).__name__} keeps no model of its own at a party "
                "(in a sweep, evaluate vectors instead)."
            )
        if not own or not self.peer:
            self._memory.vector.copy_(self.vector() if w is None else w)
            self._use(buffers)
        server = None
        if own and not self.peer:
            self._send()
            server = self._answering()
        with threads(1):
            count = self.data.training if training is None else training
            common = buffers is not None
            return evaluate(self.pool, self._job, self._memory, split, own, count, server, common)

    @property
    def has_own(self) -> bool:
        """Whether parties use models of their own."""
        return self.peer or has_personal(self.algorithm)

    # -- before the start --------------------------------------------------------------------------

    def _examine(self, draws: bool, joined: bool) -> tuple[Anatomy, list[int]]:
        """Run one round on one small party; return its anatomy and the lengths it mixes."""
        if len(self._eligible) == 0:
            raise ArchipelError("no training party has a training point: check the train split.")
        mixed: list[int] = []

        def mixing(x: Vector) -> Vector:
            mixed.append(x.shape[-1])
            return x

        buffers = self.model.buffers[None].clone() if self.model.buffer_spec.size else None
        me = LocalParty(
            self.data,
            self.model,
            self.model.one,
            self._eligible[:1],
            self.seed,
            0,
            (),
            buffers=buffers,
            draws=draws,
            limit=2,
            mixing=mixing if self.peer else None,
        )
        with threads(1):
            algorithm = statistics.joined(self.algorithm, self.model, joined)
            anatomy = examine(algorithm, me, self.model.w.clone(), len(self._eligible))
        if not statistics.keep_own(self.algorithm, self.model, joined):
            statistics.check_others(self.model, self.model.buffers, me.buffers)
        if mixed and not joined:
            raise ArchipelError(
                f"{type(self.algorithm).__name__} mixes with its neighbours: name a topology, such "
                "as topology.name = \"ring\" in a study, or topology='ring' in Python."
            )
        return anatomy, mixed
