# SPDX-License-Identifier: Apache-2.0
"""The coordinator's answers to those who join, renew, look at studies and decide about them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from archipel.aggregation.summation import Hiding
from archipel.data.shadow import Facts, shadow
from archipel.engines.network.letters import Letter
from archipel.engines.network.transport import Refused
from archipel.errors import clean
from archipel.exchange.boxes import is_peer
from archipel.federation import approval, roster
from archipel.federation.certificates import GUEST, VALID, serial, verify
from archipel.federation.coordinator.folder import CoordinatorFolder
from archipel.federation.coordinator.peer_study import PeerStudy
from archipel.federation.coordinator.server_study import ServerStudy
from archipel.federation.site.binding import schema_of
from archipel.store.registry import Decision, Registry, Submission
from archipel.study.file import Study

_SAID = 4 << 10  # bytes of a decision with its facts
_KEPT = 30  # letters of one sender in a minute that add to the database


class Enrolment:
    """Who belongs, which studies there are, and who approved them."""

    def __init__(
        self,
        home: CoordinatorFolder,
        registry: Registry,
        server_studies: Mapping[str, ServerStudy | PeerStudy],
        say: Callable[[str], None],
    ) -> None:
        """`server_studies` are the studies under way, which hear of those who come and leave."""
        self._home, self._registry, self._server_studies, self._say = (
            home,
            registry,
            server_studies,
            say,
        )
        self._audit = home.audit
        self.versions: dict[str, str] = {}  # site -> the Archipel that it runs
        self._minute, self._kept = 0, Counter[str]()  # by sender, in this minute

    def answer(self, sender: str, letter: Letter) -> Letter | None:
        """Answer a letter, unless it is one about a study under way."""
        if sender.startswith(GUEST):
            if letter.kind != "enrol":
                raise Refused("an invitation opens the joining and nothing else.")
            return self._enrol(sender.removeprefix(GUEST), letter)
        if letter.kind in ("renew", "approve"):
            self._pace(sender)
        match letter.kind:
            case "renew":
                return self._renew(sender, letter)
            case "hello":
                return self._hello(sender, letter["version"])
            case "study":
                return self._study(sender, letter["study"])
            case "approve":
                return self._approve(sender, letter)
        return None

    def _enrol(self, site: str, letter: Letter) -> Letter:
        if letter["site"] != site:
            raise Refused(f"the invitation is for {site}, not for {letter['site'][:40]}.")
        if len(letter["identity"]) != 32:
            raise Refused("identity: not an Ed25519 public key.")
        certificate = self._home.authority.issue(letter["request"], site)
        until = datetime.now(UTC) + VALID
        self._registry.redeem(
            site, letter["secret"], letter["identity"], serial(certificate), until
        )
        self._audit.append("enrolled", site=site, serial=serial(certificate))
        self._say(f"{site} joined")
        return self._certificate(certificate)

    def _renew(self, site: str, letter: Letter) -> Letter:
        certificate = self._home.authority.issue(letter["request"], site)
        self._registry.renewed(site, serial(certificate), datetime.now(UTC) + VALID)
        self._audit.append("renewed", site=site, serial=serial(certificate))
        return self._certificate(certificate)

    def _certificate(self, certificate: bytes) -> Letter:
        fields = {"certificate": certificate, "authority": self._home.authority.pem}
        return Letter("certificate", fields)

    def _hello(self, site: str, runs: str) -> Letter:
        mine, runs = version("archipel"), clean(runs)[:40]
        if runs != self.versions.get(site, mine):
            self._say(f"{site} runs Archipel {runs}, this is {mine}: results may differ")
        self.versions[site] = runs
        studies = {study.hash: study.state for study in self._registry.studies(site)}
        return Letter("welcome", {"studies": studies})

    def _study(self, site: str, digest: str) -> Letter:
        text = bytes(self._registry.study(digest, site).text).decode()
        decisions = self._registry.decisions(digest)
        members = ", ".join(d.site for d in decisions if d.decision == "approved")
        return Letter("text", {"text": text, "members": members})

    def _approve(self, site: str, letter: Letter) -> Letter:
        digest, decision = letter["study"], letter["decision"]
        known = self._registry.site(site)
        if decision not in ("approved", "rejected", "withdrawn"):
            raise Refused(f"decision = {decision[:40]!r}: say approved, rejected or withdrawn.")
        told = dict(letter["facts"])
        if not verify(known.identity, letter["signature"], _said(site, digest, decision, told)):
            raise Refused("the decision is not signed by the site.")
        if any(d.site == site and _is_again(d, letter) for d in self._registry.decisions(digest)):
            return Letter("thanks")  # two processes of a site told the same
        server_study = self._server_studies.get(digest)
        facts = Facts.of_json(told) if decision == "approved" else None
        record = self._registry.study(digest, site)
        if facts is not None:
            study = approval.read(bytes(record.text))
            self._check_late(record, study, site)
            self._check_kind(record.hash, study, site, facts)
            if is_peer(study.algorithm_object):
                roster.check_port(site, told)
        self._registry.decide(digest, site, decision, told, letter["signature"])
        self._audit.append(decision, site=site, study=digest)
        self._say(f"{site} {decision} {record.name}")
        party_states = self._registry.party_states(digest)
        if party_states and facts is not None:  # numbers were given when the study started
            party_states = self._registry.number(digest)
        if server_study is not None and site in party_states:
            server_study.change(site, party_states.index(site), facts)
        return Letter("thanks")

    def _check_late(self, record: Submission, study: Study, site: str) -> None:
        """Refuse a site that comes after the first round where the study says so.

        The disk says how far the study is, so that it counts, too, while the study is stopped.
        """
        if site in self._registry.party_states(record.hash):
            return
        if record.state == "done" and site in self._registry.named(record.hash):
            return
        if record.state == "done":
            raise Refused(
                f"study {record.name} is done and {site} took no part in it: its model is for "
                "those who did, and for sites that the operator named with 'submit --for'."
            )
        if self._home.roster_of(record.hash).exists():
            raise Refused(
                f"study {record.name}: its roster is signed, so no peer joins after its start."
            )
        if study.round.late_joiners:
            return
        if self._home.rounds_of(record.hash) > 0:
            raise Refused(
                f"study {record.name} takes no site after its first round (late_joiners)."
            )
        if record.state != "open" and isinstance(study.wire_object.sum, Hiding):
            raise Refused(
                f"study {record.name} takes no site after its start (late_joiners): its sites add "
                "up with those alone that they met first."
            )

    def _check_kind(self, digest: str, study: Study, site: str, facts: Facts) -> None:
        """Refuse data of another kind than the study describes, or than others have."""
        if study.data.schema is not None:
            described = Facts.of(schema_of(study).empty(), counts=False)
            shadow("", {"the study": described, site: facts})
            return
        for other in self._registry.decisions(digest):
            if other.decision == "approved" and other.site != site:
                shadow("", {other.site: Facts.of_json(other.facts), site: facts})
                return

    def _pace(self, sender: str) -> None:
        """Refuse more letters than people would send of those that the database keeps."""
        minute = int(time.monotonic() // 60)
        if minute != self._minute:
            self._minute, self._kept = minute, Counter()
        self._kept[sender] += 1
        if self._kept[sender] > _KEPT:
            raise Refused(f"more than {_KEPT} such letters in a minute: wait for the next.")


def _is_again(latest: Decision, letter: Letter) -> bool:
    """Whether a site says what it said last: its signature covers all of it."""
    return bool(latest.signature == letter["signature"])


def _said(site: str, study: str, decision: str, facts: Mapping[str, Any]) -> bytes:
    """What a site signs, which is kept and sent on as it is."""
    try:
        said = approval.statement(site, study, decision, facts)
    except (TypeError, ValueError):
        raise Refused("facts: no JSON; send texts and finite numbers.") from None
    if len(said) > _SAID:
        raise Refused(f"facts: {len(said)} bytes; send at most {_SAID}.")
    return said
