# SPDX-License-Identifier: Apache-2.0
"""The local engine: all parties of a simulation on one machine, stacked and in worker processes.

One file, since it is one class: the engine's protocol, over the memory that its workers share.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from archipel.adversaries.adversary import Adversary
from archipel.aggregation.mixing import mixing_rule
from archipel.aggregation.summation import Summed
from archipel.core import Algorithm, Vector
from archipel.data.federation import Federation
from archipel.engines import plan as planning
from archipel.engines.attacked import Attacked
from archipel.engines.checks import (
    check_algorithm_fields,
    check_clock,
    check_fit,
    check_stepping,
    check_sweep,
)
from archipel.engines.engine import Cause, Evaluation, Floats, Outcome, Some
from archipel.engines.heard import Heard
from archipel.engines.local import personal
from archipel.engines.local.device import CPU, check_device, on_device, plan_for
from archipel.engines.local.evaluation import chunk_of, evaluate
from archipel.engines.local.memory import Memory
from archipel.engines.local.pool import ForkedPool, Json, Pool, shares
from archipel.engines.local.server import Asked, ServerRound
from archipel.engines.local.settings import Settings
from archipel.engines.local.share import Job, Share
from archipel.engines.party import LocalParty, blueprint
from archipel.engines.plan import Plan, threads
from archipel.engines.probe import probe_once
from archipel.engines.protection import Protection, Setting, protection, simulated
from archipel.errors import ArchipelError, RunFailed
from archipel.exchange import statistics
from archipel.exchange.anatomy import Anatomy, examine
from archipel.exchange.boxes import Boxes
from archipel.models.clipped import Clipping
from archipel.models.model import Model
from archipel.privacy.promise import Kept, Privacy
from archipel.rng import Ints
from archipel.tree import Tree, fill, first, leaves, tree_map
from archipel.wire.wire import Wire

if TYPE_CHECKING:
    from archipel.graphs import Topology


Pools = Callable[[Job, Memory], Pool]  # makes the workers of an engine


class Watched(NamedTuple):
    """Who looks on: around the algorithm itself, and around its wire, sum and noise."""

    inside: Callable[[Boxes], Boxes]
    outside: Callable[[Boxes], Boxes]
    singly: bool = False  # whether it takes every upload of a round by itself, and their sizes


_TOGETHER = 256 << 20  # bytes of the models that parties make at a time


def forked(job: Job, memory: Memory) -> Pool:
    """Workers on this machine, which share its memory."""
    return ForkedPool(job.plan.workers, lambda index, call: Share(job, memory, index, call))


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
        wire: Wire | None = None,
        protocols: bool = False,
        cohort: int | None = None,
        privacy: Privacy | None = None,
        rounds: int = 1,
        most: int | None = None,
        drawn: int | None = None,
        separation: int = 1,
        pools: Pools | None = None,
        adversary: Adversary | None = None,
        watched: Watched | None = None,
    ) -> None:
        """`cohort` is how many parties a round has, at most; all that have points unless given.

        With `protocols`, sums that nobody can look into are made as between institutions; without,
        the same integers are added up as they are.

        Noise for `privacy` is enough for so many rounds, of which a party is in `most`, and in one
        of `separation` that follow each other; they ask `drawn` parties each, all as likely.

        `pools` makes the workers: processes forked from this one unless given. Parties of
        `adversary` attack the model.

        `watched` goes around the algorithm, and around all that is around it: for an audit, which
        is told what there is to see. With one worker it sees the parties' side as well.
        """
        data = data.as_trained()
        self.algorithm, self.data, self.seed = algorithm, data, seed
        self.topology = topology
        check_device(device, workers)
        check_algorithm_fields(algorithm)
        bare, self._wire = Boxes(algorithm), wire or Wire()
        if bare.asynchronous:
            check_stepping(algorithm, self._wire)
        self._protocols, self._watched = protocols, watched
        self.peer = bare.peer
        self._attacked = Attacked.of(adversary, data, seed, bare, self._wire, privacy, topology)
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
        check_clock(bare, topology, sweep, self._wire)
        self._rule = mixing_rule(self._wire.rule, bare, topology) if self.peer else None
        if pools is not None and bare.clock != "rounds":
            raise ArchipelError(
                f'engine = "ray": parties of {bare.name} have their turns one after the other, on '
                "one machine; leave the engine out."
            )
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
        if bare.clock != "rounds":  # turns follow each other
            self.plan = replace(self.plan, workers=1)
        self.model = model
        if self.plan.way not in right:  # remembered for another module that prints the same
            self.plan = Plan("one", 1, self.plan.workers)
        draws, separable = model.one.draws(data.form.x[:2]), planning.separable(model, data)
        self._joined = topology is not None
        self._edges = 0
        if bare.clock != "rounds" and topology is not None and topology.period == 1:
            self._edges = int(np.diff(topology.affinity(0).indptr).max(initial=0))
        self._eligible = data.able
        self._counted = np.setdiff1d(self._eligible, self._attacked.uncounted)
        self._cohort = len(self._eligible) if cohort is None else cohort
        self.protection: Protection | None = None
        if privacy is not None:
            of_sum = bare.asynchronous and privacy.trust in ("sum", "shuffler")  # nobody is drawn
            asked = self._cohort if of_sum else drawn or self._cohort
            who = (self._eligible, asked, rounds, most or rounds)
            setting = Setting(data, model, seed, *who, separation=separation)
            self.protection = protection(privacy, bare, setting, self._wire, simulated(seed))
        around, self.anatomy = self._fitted(self._protected(bare), draws)
        self._attacked.check(self.anatomy, bare.name)
        self._settings = Settings(
            algorithm,
            self._swept,
            model.dtype,
            lambda each: self._attacked.outside(
                around(statistics.joined(self._protected(Boxes(each)), model, self._joined)),
                len(self.anatomy.messages),
            ),
        )
        shared, own = self.anatomy.shared, self.anatomy.own
        if count is not None:
            shared, own = self._settings.first_states(model.w, blueprint(model, data, seed))
        output = model.predict(model.w, data.form.x[:1], model.buffers)[0]
        self._job = Job(
            self._settings.together,
            data,
            model,
            right[self.plan.way],
            self.plan,
            seed,
            count,
            self._attacked.seen(self.anatomy, watched is not None and watched.singly),
            own,
            draws,
            separable,
            topology,
            output,
            chunk_of(data, output),
            max(self.plan.workers, min(64, _TOGETHER // (4 * model.p))),
            statistics.keep_own(bare, model, self._joined),
            self._cohort,
            self._clipping,
            {} if self.protection is None else self.protection.rows,
            self._attacked,
            self._edges,
            self._rule,
        )
        board = max([model.p, *self._mixed]) if self.peer and topology is not None else 0
        self._memory = Memory(self._job, board)
        if bare.learns_graph and topology is not None:
            self._memory.graph.copy_(torch.from_numpy(topology.affinity(0).toarray()))
        self.shared = tree_map(Tensor.clone, shared)
        self._done = 0  # rounds: the one in which parties make models of their own
        self._heard = Heard(data.training) if self.anatomy.whole else None
        self._pools = pools or forked
        self._versions: dict[int, Tree] = {}  # older shared states that parties are at work on
        self._pool: Pool | None = None

    # -- life ------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._pool is not None:
            raise ArchipelError("the engine is running already: enter it once.")
        boxes: Any = self._job.boxes if self._watched is None else self._job.boxes.inner  # type: ignore[attr-defined]
        if isinstance(boxes, Summed):
            boxes.check(self._cohort, int(self.data.n[self._eligible].max()))
        probe_once(self.algorithm, self.data, self.model, self.seed, self._swept)
        self._pool = self._pools(self._job, self._memory)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers."""
        self._memory.kept.close()
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

    @property
    def said(self) -> str:
        """How workers that are elsewhere are doing, in words."""
        return "" if self._pool is None else self._pool.said

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
        return self._round(t, Asked(ids, answers, needed, unheard), effort)

    def step(
        self,
        t: int,
        parties: Sequence[int] | Ints,
        versions: Sequence[int] | Ints,
        held: Collection[int] = (),
        *,
        unheard: int = 0,
    ) -> Outcome:
        """Do the server's step t: `archipel.engines.engine.SteppingEngine.step`."""
        ids, began = np.asarray(parties, np.int64), np.asarray(versions, np.int64)
        self._versions[t] = tree_map(Tensor.clone, self._settings.broadcast(self.shared, t))
        outcome = self._round(t, Asked(ids, None, 1, unheard), versions=began)
        self._versions = {version: self._versions[version] for version in held}
        return outcome

    def _round(
        self, t: int, asked: Asked, effort: Floats | None = None, versions: Ints | None = None
    ) -> Outcome:
        ids, answers, needed, _ = asked
        done = np.ones(len(ids)) if effort is None else np.asarray(effort, np.float64)
        if len(ids) > self._cohort:
            raise ArchipelError(
                f"{len(ids)} parties in a round, where the engine was made for {self._cohort}: "
                f"give it cohort={len(ids)}."
            )
        if versions is not None:
            self._put_older(t, ids, versions)
        together = self._job.boxes.clock == "rounds"
        self._memory.kept.reserve(ids if together else np.arange(self.data.training))
        self._memory.kept.release()
        undo = needed > 1 or answers is not None or self._wire.sum is not None
        dealt = [{**work, "undo": undo} for work in self._deal(t, ids, done, answers, versions)]
        before, self._done = self._done, t + 1
        with threads(1):
            if len(ids) == 0:
                return Outcome(ids)
            if self.peer:
                outcome = self._peer_round(t, ids, dealt, needed)
            else:
                outcome = self._server_round(t, asked, dealt)
            if len(outcome.arrived) == 0:
                self._done = before
                self.pool.run([{"do": "undo"} for _ in dealt])
        return outcome

    def _server_round(self, t: int, asked: Asked, dealt: list[Json]) -> Outcome:
        self._send(t)
        parts = (self._job, self._memory, self._settings, len(self._eligible))
        shared, outcome = ServerRound(*parts, t, asked).run(self.pool, self.shared, dealt)
        if shared is not None:
            self.shared = shared
        return outcome

    def _peer_round(self, t: int, ids: Ints, dealt: list[Json], needed: int) -> Outcome:
        answers = self.pool.run([{**work, "present": ids.tolist()} for work in dealt])
        bad = np.array(sorted(k for answer in answers for k in answer["bad"]), np.int64)
        if len(bad) and (self._job.topology is not None or len(bad) == len(ids)):
            raise RunFailed(
                f"round {t + 1}: the model of party {self.data.name(int(bad[0]))} is no longer "
                f"finite: {self._job.boxes.remedy}."
            )
        gradients = sum(answer["gradients"] for answer in answers)
        diverged = dict.fromkeys(bad.tolist(), Cause("diverged"))
        arrived = ids[~np.isin(ids, bad)]
        if len(arrived) < needed:
            return Outcome(ids[:0], diverged, gradients)
        sent = sum(answer.get("bytes", 0) for answer in answers)
        if self._job.topology is not None and self._job.boxes.clock == "rounds":
            absent = np.setdiff1d(np.arange(self.data.training), arrived)
            sizes = np.zeros((self.data.training, 2), np.int64)
            for answer in answers:
                sizes[answer["ids"]] = np.reshape(answer["sizes"], (-1, 2))  # some have none
            edges = self._job.topology.edges(t, absent).numpy()
            missed = self._heard.missed(t, arrived, edges) if self._heard else False
            sent = int(np.where(missed, sizes[edges, 1], sizes[edges, 0]).sum())
        return Outcome(arrived, diverged, gradients, sent, sent)

    def _send(self, t: int) -> None:
        """Put what parties get of the shared state where they read it."""
        told = self._settings.broadcast(self.shared, t)
        tree_map(Tensor.copy_, self._memory.sent.shared, told)

    def _put_older(self, t: int, ids: Ints, versions: Ints) -> None:
        """The same of the versions that these parties began from, a row for each."""
        if len(np.unique(ids)) < len(ids) or len(versions) != len(ids):
            raise ArchipelError(f"round {t + 1}: a step takes one upload of a party, once each.")
        for row, version in enumerate(np.unique(versions).tolist()):
            if version not in self._versions:
                raise ArchipelError(
                    f"round {t + 1}: a party began from version {version}, which is gone; there "
                    f"are {sorted(self._versions)}."
                )
            self._memory.sent.put_older(row, self._versions[version])

    def _deal(
        self, t: int, ids: Ints, effort: Any, answers: Ints | None, versions: Ints | None
    ) -> list[Json]:
        """Give every worker parties of about the same work, the largest first."""
        cost = (self.data.n[ids].numpy() * effort).tolist()
        return [
            {
                "do": "round",
                "t": t,
                "ids": ids[share].tolist(),
                "places": share,
                "effort": effort[share].tolist(),
                "answers": None if answers is None else answers[share].tolist(),
                "versions": None if versions is None else versions[share].tolist(),
                "older": [] if versions is None else np.unique(versions).tolist(),
                "cohort": len(ids),
            }
            for share in shares(cost, len(self.pool))
        ]

    def state(self) -> dict[str, Tensor]:
        """All that the next round depends on besides its number: a checkpoint."""
        shared = {f"shared.{i}": leaf.clone() for i, leaf in enumerate(leaves(self.shared))}
        older = {
            f"version.{version}.{i}": leaf
            for version, told in self._versions.items()
            for i, leaf in enumerate(leaves(told))
        }
        memory = self._memory
        walk = {f"token.{i}": leaf.clone() for i, leaf in enumerate(leaves(memory.tokens))}
        if walk:
            walk["holders"] = memory.holders.clone()
        if self._job.boxes.learns_graph:
            walk["edges"] = memory.graph.nonzero().contiguous()
            walk["weights"] = memory.graph[tuple(walk["edges"].T)]
        kept = memory.kept.state()
        if self._heard is not None:
            kept |= self._heard.state()
        return {**shared, **older, **walk, **kept, "done": torch.tensor([self._done])}

    @property
    def keeps_much(self) -> bool:
        """Whether what parties keep is too much to be written with every checkpoint."""
        return self._memory.kept.large

    def keep_in(self, folder: Path, writes: bool = True) -> None:
        """Have what parties keep in files there, before the engine runs; or read it from there."""
        self._memory.kept.keep_in(folder, writes)

    def moved(self, folder: Path) -> None:
        """That folder has another name now."""
        self._memory.kept.moved(folder)

    def committed(self) -> None:
        """The last `state` is what a resumed run begins with."""
        self._memory.kept.committed()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a checkpoint of an engine made alike."""
        self._versions = {}
        here = {f"shared.{i}": leaf for i, leaf in enumerate(leaves(self.shared))}
        if "slots" not in state:
            here |= self._memory.kept.rows_of(np.zeros(0, np.int64))
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
        ids = state.get("visited", torch.zeros(0))
        if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < self.data.parties):
            raise ArchipelError("the checkpoint names parties that do not exist: it is damaged.")
        self.restore_shared(state)
        memory = self._memory
        memory.kept.restore(state)
        if "holders" in state:
            memory.holders = state["holders"].clone()
            walked = [state[f"token.{i}"].clone() for i in range(len(leaves(memory.tokens)))]
            memory.tokens = fill(memory.tokens, walked)
        if "edges" in state:
            memory.graph.zero_()
            memory.graph[tuple(state["edges"].T)] = state["weights"]
            memory.graph_version += 1
        if self._heard is not None:
            self._heard.restore(state)
        self._done = int(state["done"]) if "done" in state else self._done  # older ones lack it
        told = self._memory.sent.shared
        older = {int(name.split(".")[1]) for name in state if name.startswith("version.")}
        for version in sorted(older):
            mine = [state[f"version.{version}.{i}"].clone() for i in range(len(leaves(told)))]
            self._versions[version] = fill(told, mine)

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
        """The own models of peers, a row each: of all that have training points, or of these.

        Those of adversaries are not among all.
        """
        return first(self.own_states(self._counted if parties is None else parties))

    def own_states(self, parties: Sequence[int] | Ints) -> Tree:
        """The own states of these parties, a row each."""
        return self._memory.kept.own_of(parties)

    def own_model(self, k: int) -> tuple[Vector, Tensor | None]:
        """The model `[p]` that party k uses, and its statistics: its own, or the shared one."""
        share = Share(self._job, self._memory, 0, lambda *_: None)
        with threads(1):
            if self.peer or not self.has_own:
                w = self.own_models([k])[0] if self.peer else self.vector()
                self._use(None)
                return w.clone(), share.statistics(k, w)
            self._send(self._done)
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
            seen = np.flatnonzero(self._memory.kept.visited.numpy())
            return self._memory.kept.buffers_of(seen).mean(dim=0) if len(seen) else None
        if not len(model.running):
            return model.buffers
        if self.peer:
            own = statistics.statistics_of(self.own_states(self._counted))
            return None if own is None else model.buffers_with(own.mean(dim=0))
        shared = statistics.statistics_of(self.shared)
        return model.buffers if shared is None else model.buffers_with(shared)

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
        who: Some | None = None,
    ) -> Evaluation:
        """Metrics on every party's points: of one vector, or with `own` of each party's model.

        With `who` on these parties' points alone, and how sure that is.

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
            self._send(self._done)
            server = self._answering()
        with threads(1):
            count = self.data.training if training is None else training
            common = buffers is not None
            parts = (self.pool, self._job, self._memory)
            without = self._attacked.uncounted if own else ()
            return evaluate(*parts, split, own, count, server, common, who, without)

    def graph(self) -> Topology | None:
        """Who talks to whom, as it is now where that is learned; None where nobody does."""
        if not self._job.boxes.learns_graph:
            return self._job.topology
        from archipel.graphs.fixed import fixed

        return fixed("learned", csr_array(self._memory.graph.double().numpy()))

    @property
    def has_own(self) -> bool:
        """Whether parties use models of their own."""
        return self.peer or self._job.boxes.has_personal

    # -- before the start --------------------------------------------------------------------------

    def _protected(self, boxes: Boxes) -> Boxes:
        boxes = self._attacked.inside(boxes)
        boxes = boxes if self._watched is None else self._watched.inside(boxes)
        return boxes if self.protection is None else self.protection.inside(boxes)

    @property
    def kept(self) -> Kept | None:
        """What is promised, with its plan."""
        return None if self.protection is None else self.protection.kept

    @property
    def _clipping(self) -> Clipping | None:
        return None if self.protection is None else self.protection.clipping

    def _fitted(self, bare: Boxes, draws: bool) -> tuple[Callable[[Boxes], Boxes], Anatomy]:
        """Run a round on one small party: what puts the algorithm on the wire, and its anatomy."""
        if len(self._eligible) == 0:
            raise ArchipelError("no training party has a training point: check the train split.")
        mixed: list[Tensor] = []
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
            mixing=(lambda x, coded=None: x) if self.peer else None,
            mixed=mixed,
            clipping=self._clipping,
            edges=self._edges,
        )
        with threads(1):
            boxes = statistics.joined(bare, self.model, self._joined)
            parties = len(self._eligible)
            at = (me, self.model.w.clone(), parties, self._cohort)
            wire = self._wire if self.protection is None else self.protection.on(self._wire)
            around, found = wire.fitted(boxes, *at, exact=not self._protocols)
            if self.protection is not None:
                outside, inner, messages = self.protection.outside, around, found.messages
                around = lambda each: outside(inner(each), messages)  # noqa: E731
                seen = examine(around(boxes), *at)
                found = found.seen_as(seen)
            if self._watched is not None:
                look, within = self._watched.outside, around
                around = lambda each: look(within(each))  # noqa: E731
        if not statistics.keep_own(bare, self.model, self._joined):
            statistics.check_others(self.model, self.model.buffers, me.buffers)
        if mixed and not self._joined:
            raise ArchipelError(
                f"{bare.name} mixes with its neighbours: name a topology, such "
                "as topology.name = \"ring\" in a study, or topology='ring' in Python."
            )
        self._mixed = [x.shape[-1] for x in mixed]
        return around, found
