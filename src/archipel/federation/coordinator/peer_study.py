# SPDX-License-Identifier: Apache-2.0
"""A study between peers, as the coordinator sees it: it hears what peers tell, and does nothing.

The loop, the journal and the live picture are those of other studies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from archipel.core import PeerAlgorithm
from archipel.data.federation import Federation
from archipel.data.shadow import Facts
from archipel.engines.engine import Cause, Outcome
from archipel.engines.network.fitting import fitted, keepable, told_plan
from archipel.engines.network.letters import Letter
from archipel.engines.network.transport import Refused
from archipel.exchange.boxes import clock_of
from archipel.federation.coordinator.peer_reports import PeerReports
from archipel.federation.coordinator.sites import Sites
from archipel.federation.roster import Signed
from archipel.federation.scale import Scale
from archipel.metrics import PRIMARY, name_of
from archipel.models.model import Model
from archipel.runs.beginning import Beginning
from archipel.runs.loop import Loop
from archipel.runs.participation import Cohort
from archipel.runs.parts import build_topology
from archipel.runs.simulation import Options


class PeerAttendance:
    """Who took part among peers: those who tell of a round, and it counts whoever they are."""

    def __init__(self, engine: PeerReports, sites: Sites) -> None:
        self._engine, self._sites = engine, sites

    def take_part(self, t: int, clock: int) -> tuple[Cohort, Outcome]:
        self._sites.find_scale()
        sampled = self._sites.eligible
        outcome = self._engine.round(t, sampled)
        effort = np.broadcast_to(1.0, outcome.arrived.shape)
        return Cohort(sampled, outcome.arrived, effort, dict(outcome.missing)), outcome

    def before_evaluation(self) -> None:
        """Their scores have come with what they told."""


class PeerStudy:
    """A study that peers run among themselves: its loop, and its answers to them."""

    def __init__(
        self,
        algorithm: PeerAlgorithm,
        fed: Federation,
        model: Model,
        options: Options,
        sites: Mapping[str, Facts | None],
        roster: Signed,
        excluded: Callable[[], Signed],
        silence: float = 60.0,
        scale: Scale | None = None,
    ) -> None:
        """`excluded` are the members of the roster that peers go on without, as of now."""
        self.roster, self._excluded = roster, excluded
        begun = Beginning(algorithm, fed, model, options)
        if (promise := options.get("privacy")) is not None:
            keepable(
                promise, algorithm, fed, model, seed=begun.seed, rounds=begun.rounds,
                wire=options.get("wire"),
            )  # fmt: skip
        _, anatomy = fitted(algorithm, fed, model, 0, begun.seed, options.get("wire"), fed.training)
        metric = name_of(options.get("metric") or PRIMARY[fed.task])
        self.engine = PeerReports(anatomy, fed.training, metric, silence)
        self.engine.topology = build_topology(options.get("topology"), fed, begun.seed)
        if clock_of(algorithm) == "walk":  # a peer tells of rounds in which it had a token
            self.engine.unheard = Cause("not visited yet")
        if promise is not None:
            self.engine.kept = told_plan(
                promise, algorithm, fed, model, seed=begun.seed, rounds=begun.rounds,
                wire=options.get("wire"),
            )  # fmt: skip
            if self.engine.kept is not None:
                self.engine.kept.at_most(1)  # found before anybody looks
        (self.run,) = begun.runs(self.engine, {})
        self.sites = Sites(self.run, begun.who, sites, self.engine, scale, silence)
        attendance = PeerAttendance(self.engine, self.sites)
        self.loop = Loop(self.engine, attendance, [self.run], begun.every)

    async def answer(self, party: int, letter: Letter) -> Letter:
        """Answer a letter of a peer that has this number."""
        match letter.kind:
            case "told":
                self.sites.presence.seen(party)
                if not 1 <= letter["round"] <= self.run.rounds:
                    raise Refused(f"round {letter['round']}: there is none.")
                self.engine.tell(party, letter)
                return Letter("thanks")
            case "roster":
                gone = self._excluded()
                fields = {
                    "study": letter["study"],
                    "roster": self.roster.text,
                    "signature": self.roster.signature,
                    "revoked": gone.text,
                    "revoked_signature": gone.signature,
                }
                return Letter("peers", fields)
            case "scale" | "sums" | "away":
                return self.sites.answer(party, letter)
        name = type(self.run.algorithm).__name__
        raise Refused(f"{name} has no server: take part with 'archipel peer up'.")

    def moved(self, site: str) -> None:
        """Bytes of a large letter pass to or from a peer."""
        self.sites.seen(site)

    def change(self, site: str, party: int, facts: Facts | None) -> None:
        """A peer leaves; none joins once the roster is signed."""
        if facts is None:
            self.engine.gone(party, Cause("left"))

    def presence(self) -> dict[str, str]:
        """What every peer does now, by name, as far as it is seen here."""
        return self.sites.shown({})

    def keep_log(self, anchor: str) -> None:
        """Peers keep no end of the coordinator's audit log: it sends them no work."""

    def end(self) -> None:
        """Peers know when the study is over."""
