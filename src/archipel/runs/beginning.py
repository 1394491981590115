# SPDX-License-Identifier: Apache-2.0
"""What every run begins with, on one machine or between sites: what its options say, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import ceil
from typing import Any

import numpy as np
import torch

from archipel import rng
from archipel.core import Algorithm
from archipel.data.federation import Federation
from archipel.devices.build import check_ever, devices_of
from archipel.engines.engine import Engine, Some
from archipel.errors import ArchipelError
from archipel.exchange.boxes import Boxes, buffer_of, is_asynchronous, is_peer
from archipel.exchange.statistics import averages, notes_of
from archipel.graphs import PeerSampling, Topology
from archipel.metrics import name_of
from archipel.models.flops import flops_of_one_gradient
from archipel.models.model import Model
from archipel.rng import Ints
from archipel.runs.attendance import work_in_round
from archipel.runs.clock import Clock
from archipel.runs.events import check_asynchronous
from archipel.runs.participation import Participation, absences
from archipel.runs.parts import build_topology
from archipel.runs.run import Run

LEAST_SCORED = 30  # parties that a sample to score has, in a study


class Beginning:
    """A run before its engine is made: who takes part, how long, and what is to be said of it."""

    def __init__(
        self, algorithm: Algorithm, fed: Federation, model: Model, options: Mapping[str, Any]
    ) -> None:
        """`options` are those of `archipel.runs.simulation.Options`."""
        self._algorithm, self._fed, self._model, self._options = algorithm, fed, model, options
        self.rounds, self.every = options.get("rounds", 100), options.get("evaluate_every", 1)
        self.seed: int = options.get("seed", 0)
        if self.rounds < 1 or self.every < 1:
            raise ArchipelError(
                f"rounds = {self.rounds}, evaluate_every = {self.every}: give whole numbers from 1."
            )
        away = {fed.index(name): absences(t) for name, t in (options.get("away") or {}).items()}
        self.who = Participation.of({**options, "away": away})
        self.eligible = fed.able
        self._notes = _empty(fed, len(self.eligible))
        self.asynchronous = is_asynchronous(algorithm) and not fed.about.elsewhere
        ticks = {"clock": True} if self.asynchronous and options.get("speed") is not None else {}
        self.devices = devices_of({**options, **ticks}, self.seed)
        if self.devices is not None and is_peer(algorithm):
            raise ArchipelError(
                f"simulate.devices: {type(algorithm).__name__} has no server, and the clock is "
                "that of a server's rounds; leave devices, trace and clock out."
            )
        timed = self.devices is not None or self.who.speed is not None or fed.about.elsewhere
        if self.who.deadline is not None and not timed:
            self._notes.append(
                f"deadline = {self.who.deadline:g} has no effect in this simulation, where nobody "
                "takes time: give simulate.speed, in examples per second."
            )
        self.who.count(len(self.eligible))
        if self.devices is not None:
            check_ever(self.devices, self.eligible, self.who.needed(len(self.eligible)))
        if self.asynchronous:
            averaged = averages(Boxes(algorithm), model) and len(model.running) > 0
            about = type(algorithm).__name__, self.who, len(self.eligible), self.cohort, averaged
            check_asynchronous(options, *about)
            if self.devices is None:
                self._notes.append(
                    "every party takes one second, since nobody's speed is known: give "
                    "simulate.devices, such as 'phones', or simulate.speed, in examples per second."
                )

    @cached_property
    def topology(self) -> Topology | None:
        """Who talks to whom; a peer-sampling service knows who is away."""
        found = build_topology(self._options.get("topology"), self._fed, self.seed)
        if isinstance(found, PeerSampling) and not self.who.always:
            return found.without(partial(_away, self.who, self.eligible, self.seed))
        return found

    @property
    def cohort(self) -> int:
        """How many uploads a round has, at most."""
        count = self.who.count(len(self.eligible))
        return buffer_of(self._algorithm, count) if self.asynchronous else count

    @property
    def scored(self) -> Some | None:
        """Who the model is scored at, the same parties in every evaluation; None: everybody."""
        wanted, fed = self._options.get("evaluate_sample"), self._fed
        if wanted is None:
            return None
        if fed.about.elsewhere:
            raise ArchipelError(
                f"evaluate_sample = {wanted}: every site scores the model itself; leave it out."
            )
        if fed.origin is not None:
            raise ArchipelError(
                f"evaluate_sample = {wanted}: this federation has virtual parties or folds, which "
                "are scored with the party they belong to; leave one of the two out."
            )
        if wanted < LEAST_SCORED:
            raise ArchipelError(
                f"evaluate_sample = {wanted}: from fewer than {LEAST_SCORED} parties nobody can "
                "say how sure a metric is; score more, or leave it out for all."
            )
        able = np.flatnonzero(fed.n_test.numpy() > 0)
        cut = int(np.searchsorted(able, fed.training))
        drawn, draws = [], rng.generator(self.seed, 0, "evaluation")
        for group in (able[:cut], able[cut:]):
            count = min(wanted, len(group))
            at = draws.choice(len(group), count, replace=False, shuffle=False) if count else []
            drawn.append(np.sort(group[at]))
        if sum(map(len, drawn)) == len(able):
            return None
        return Some(np.concatenate(drawn), (cut, len(able) - cut))

    @property
    def _as_likely(self) -> bool:
        """Whether every party is asked with the same chance, by a draw that is the run's alone."""
        devices = self.devices
        comes_and_goes = devices is not None and not devices.presence.always
        return not (
            self.asynchronous  # who is fast takes part more often
            or self.who.away
            or self.who.availability != 1
            or comes_and_goes
            or self._options.get("pace")
        )

    def clock(self) -> Clock | None:
        """The clock of the devices, where there are any."""
        if self.devices is None:
            return None
        flops, _ = flops_of_one_gradient(self._model, self._fed.x[:1])
        return Clock(
            self.devices,
            self.who,
            self.eligible,
            self.seed,
            work_in_round(self._algorithm, self._fed, self.eligible),
            flops,
            patience=self._options.get("patience"),
            pace=bool(self._options.get("pace")),
        )

    @property
    def drawn(self) -> int:
        """How many parties a round has asked at the most, of which all are as likely; else all."""
        who, parties = self.who, len(self.eligible)
        if not self._as_likely or who.separation > 1:
            return parties  # those that are there, or did not just take part, are more likely
        return min(parties, ceil(who.count(parties) * (1 + who.over_select) - 1e-9))

    @property
    def most(self) -> int:
        """Rounds that a party takes part in, at most: known where who is asked is drawn alone."""
        who = self.who
        drawn = self._as_likely and self._options.get("privacy") is not None
        if who.separation > 1:
            return -(-int(self.rounds) // who.separation)
        if not drawn or self._fed.about.elsewhere:
            return int(self.rounds)
        counts = np.zeros(self._fed.parties, np.int64)
        for t in range(self.rounds):
            counts[who.ask(self.eligible, self.seed, t)[0]] += 1
        return int(counts.max())

    def runs(self, engine: Engine, settings: Mapping[str, Sequence[float]]) -> list[Run]:
        """The run with this engine, or those of a sweep's settings."""
        algorithm, options = self._algorithm, self._options
        notes = [*self._notes, *notes_of(Boxes(algorithm), engine.own_statistics)]
        if options.get("server_sees") == "sums" and not engine.anatomy.sums_only:
            if rule := engine.anatomy.wire.rule:
                raise ArchipelError(
                    f'privacy.server_sees = "sums": round.rule, {rule}, looks at single uploads; '
                    "leave one of the two out."
                )
            raise ArchipelError(
                f'privacy.server_sees = "sums": {type(algorithm).__name__} looks at single uploads '
                "(uploads.stack()); take an algorithm that needs their mean alone."
            )
        if self.who.lost and engine.anatomy.summed and len(engine.anatomy.messages) == 1:
            notes.append(
                f"lost = {self.who.lost:g} has no effect in this simulation, whose sums take one "
                "message: say simulate.protocols = true for those of the protocol."
            )
        values = zip(*settings.values(), strict=True) if settings else [()]
        return [
            Run(
                replace(algorithm, **dict(zip(settings, value, strict=True))),  # type: ignore[type-var]
                self._fed,
                self._model,
                self.seed,
                engine.plan,
                engine.anatomy,
                self.rounds,
                name_of(options.get("metric") or ""),
                options.get("target"),
                notes=list(notes),
                kept=engine.kept,
                promise=options.get("privacy"),
                adversary=options.get("adversary"),
            )
            for value in values
        ]


def _empty(fed: Federation, eligible: int) -> list[str]:
    """Say who cannot take part for want of training points."""
    empty = torch.nonzero(fed.n[: fed.training] == 0)[:, 0]
    if eligible == 0:
        raise ArchipelError("no party has a training point: check the train/test split.")
    if len(empty) == 0:
        return []
    shown = ", ".join(fed.name(int(k)) for k in empty[:5]) + (", ..." if len(empty) > 5 else "")
    return [f"{len(empty)} parties have no training point and are left out: {shown}."]


def _away(who: Participation, eligible: Ints, seed: int, t: int) -> Ints:
    """Who is not there in round t, counting none that was waited for."""
    away: Ints = eligible[~who.here(eligible, seed, t)]
    return away
