# SPDX-License-Identifier: Apache-2.0
"""A run as its bulletin tells it, entry by entry: what parties and verifiers both go by.

Who is in follows from the file alone. Whoever joined before the keeper announced "commit",
committed before it announced "reveal", and so on, is in the next phase; whoever lost a dispute is
out. So all agree on whose pairwise terms a published value holds. Entries that are not signed, come
twice, out of turn or in another form count for nothing. They are faults of those who signed them:
what nobody signed, signed once and stands twice, or signed for another bulletin was put there by
whoever wrote the file.

Where there is no keeper, announcements follow from what was said, and a last phase follows, "seal":
each party signs the hash of all before. It may follow "commit" at once, where values are not proved
to be in range: then nobody publishes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256, shake_256
from math import floor

from archipel.errors import ArchipelError
from archipel.verifiable.bulletin import BAD, CHANGED, Entry, Fault, signed_by
from archipel.verifiable.commitments import commitment
from archipel.verifiable.equations import hold
from archipel.verifiable.group import ORDER, Point
from archipel.verifiable.messages import Accuse, Commit, Correct, Dispute, Join, Publish, Reveal
from archipel.verifiable.terms import Terms
from archipel.verifiable.transcript import Transcript

PHASES = ("join", "commit", "reveal", "publish", "correct")
Earlier = dict[tuple[object, ...], dict[str, Sequence[Point]]]  # commitments, by what they are to
SEAL = "seal"  # the last phase, where there is no keeper
_WHEN = {**{phase: phase for phase in (*PHASES, SEAL)}, "dispute": "reveal"}


@dataclass
class Run:
    """One run, up to the last entry that was taken."""

    terms: Terms
    keeper: bytes  # Ed25519 public key; empty where there is none
    session: bytes  # hash of its first announcement, which has all terms in it
    earlier: Mapping[str, Sequence[Point]]  # commitments to the same data
    seen: str = ""  # hash of the last announcement
    phase: str = "join"
    ended: bool = False
    joined: dict[str, Join] = field(default_factory=dict)
    committed: dict[str, Commit] = field(default_factory=dict)
    shares: dict[str, bytes] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)  # disputes: the party, and with whom
    active: frozenset[str] = frozenset()  # who may publish
    beacon: bytes = b""  # what all coins come from: every share that was revealed
    published: dict[str, Publish] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()  # who may publish, and did not
    corrected: dict[tuple[str, str], Correct] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    heard: set[bytes] = field(default_factory=set)  # hashes of what parties signed
    sealed: set[str] = field(default_factory=set)
    told: dict[str, bytes] = field(default_factory=dict)  # what parties sign about each phase

    @classmethod
    def begin(cls, said: Entry, line: bytes, earlier: Earlier) -> Run:
        """A run from its first announcement."""
        if set(said.body) != {"terms", "keeper"} or not isinstance(said.body["terms"], dict):
            raise ArchipelError("run: not the beginning of one.")
        terms = Terms.read(said.body["terms"])
        try:
            keeper = bytes.fromhex(said.body["keeper"])
        except (ValueError, TypeError):
            raise ArchipelError("keeper: not a key in hexadecimal.") from None
        if not _announces(keeper, said):
            raise ArchipelError("run: its announcement is not signed with the keeper's key.")
        session = sha256(line).digest()
        known = dict(earlier.get(same_data(terms), {}))
        found = cls(terms, keeper, session, known, session.hex())
        found.told["join"] = found.occasion
        return found

    @property
    def occasion(self) -> bytes:
        """Names this phase of this run, after all that was said before."""
        return sha256(self.session + f"\0{self.phase}\0{self.seen}".encode()).digest()

    # -- who -----------------------------------------------------------------------------------

    def neighbours(self, name: str) -> list[str]:
        """With whom a party has pairwise terms: whom it picked, and who picked it; by name."""
        return list(self._places[name])

    @cached_property
    def _places(self) -> dict[str, dict[str, int]]:
        """Each party's neighbours and their places in its commitments, once all have joined."""
        found: dict[str, set[str]] = {name: set() for name in self.joined}
        for name, said in self.joined.items():
            for other in said.picks:
                if other in found:
                    found[name].add(other)
                    found[other].add(name)
        return {name: {each: i for i, each in enumerate(sorted(of))} for name, of in found.items()}

    def pair(self, name: str, other: str) -> tuple[Point, ...]:
        """A party's commitments to its terms with another."""
        return self.committed[name].pairs[self._places[name][other]]

    @property
    def speakers(self) -> Collection[str]:
        """Who is to say something in this phase."""
        return {
            "join": self.terms.parties.keys(), "commit": self.joined.keys(),
            "reveal": self.committed.keys(), "publish": self.active,
            "correct": self.published.keys(), SEAL: self.joined.keys(),
        }[self.phase]  # fmt: skip

    @property
    def seals(self) -> int:
        """How many parties have to seal a bulletin without a keeper: so one of them is honest."""
        n = len(self.terms.parties)
        return 0 if self.keeper else n - floor(self.terms.honest * n + 1e-9) + 1

    # -- entries -------------------------------------------------------------------------------

    def take(self, said: Entry, line: bytes) -> None:
        """Go on by one entry."""
        if said.by == "":
            self._announced(said, line)
            return
        fault = self.refused(said)
        if fault is None or not fault.of_the_log:
            self.heard.add(sha256(said.signed).digest())
        if fault is None:
            try:
                self._said(said)
            except ArchipelError as error:
                fault = Fault(said.by, "malformed", f"{said.what}: {str(error).rstrip('.')}")
        if fault is not None:
            self.faults.append(fault)

    def _announced(self, said: Entry, line: bytes) -> None:
        phases = PHASES if self.keeper else (*PHASES, SEAL)
        after = [*phases[1:], "end"][phases.index(self.phase)]
        says = "end" if said.what == "end" else said.body.get("phase")
        if self.phase == "commit" and not self.keeper and says == SEAL:
            after = SEAL
        if not _announces(self.keeper, said):
            self.faults.append(Fault("", BAD, f"{said.what}: not the keeper's"))
        elif says != after:
            self.faults.append(Fault("", "out of turn", f"the keeper announces {str(says)[:40]!r}"))
        else:
            self.seen = sha256(line).hexdigest()
            self.ended = says == "end"
            self.phase = self.phase if self.ended else after
            self.told[self.phase] = self.told.get(self.phase, self.occasion)
            if self.phase == "publish":
                self.active = frozenset(self.shares) - frozenset(self.lost)
                parts = [f"{name}\0".encode() + self.shares[name] for name in sorted(self.shares)]
                told = b"archipel beacon\0" + self.session + b"".join(parts)
                self.beacon = sha256(told).digest()
            elif self.phase == "correct":
                self.missing = self.active - frozenset(self.published)

    def refused(self, said: Entry) -> Fault | None:
        """Why a party's entry counts for nothing, whatever it says."""
        name, key = said.by, self.terms.parties.get(said.by)
        if key is None:
            return Fault("", BAD, f"{said.what} of {name}, who is no party of this run")
        if not signed_by(_key(key), said):
            return Fault("", BAD, f"{said.what} in the name of {name}, who did not sign it")
        if said.seen != self.seen:
            return Fault("", CHANGED, f"{said.what} of {name}, who saw another bulletin than this")
        if sha256(said.signed).digest() in self.heard:
            return Fault("", CHANGED, f"{said.what} of {name}, who signed it once, is there twice")
        if self.ended or _WHEN.get(said.what, self.phase) != self.phase:
            return Fault(name, "out of turn", f"{said.what} in phase {self.phase!r}")
        return None

    def _said(self, said: Entry) -> None:
        name, terms = said.by, self.terms
        match said.what:
            case "join":
                self._once(name not in self.joined, name)
                self.joined[name] = Join.read(said.body, terms, name)
            case "commit":
                self._once(name in self.joined and name not in self.committed, name)
                count = len(self._places[name])
                self.committed[name] = Commit.read(said.body, terms, count)
            case "dispute":
                self._once(name in self.committed, name)
                neighbours = [each for each in self._places[name] if each in self.committed]
                self._judge(name, Dispute.read(said.body, neighbours))
            case "reveal":
                self._once(name in self.committed and name not in self.shares, name)
                share = Reveal.read(said.body).share
                if sha256(share).digest() != self.committed[name].share:
                    self.faults.append(
                        Fault(
                            name, "wrong noise", "its share of the coins is not the committed one"
                        )
                    )
                    return
                self.shares[name] = share
            case "publish":
                self._once(name in self.active and name not in self.published, name)
                self.published[name] = Publish.read(said.body, terms)
            case "correct":
                self._once(name in self.published, name)
                read = Correct.read(said.body, terms, self.missing_neighbours(name))
                self._once((name, read.other) not in self.corrected, name)
                self.corrected[name, read.other] = read
            case "accuse":
                self._convict(name, Accuse.read(said.body, terms, self.told))
            case "seal":
                self._once(name in self.joined and name not in self.sealed, name)
                if said.body:
                    raise ArchipelError("a seal says nothing else.")
                self.sealed.add(name)

    def missing_neighbours(self, name: str) -> list[str]:
        """Whose terms its published value holds in vain."""
        return [each for each in self._places[name] if each in self.missing]

    def _once(self, right: bool, name: str) -> None:
        if not right:
            raise ArchipelError(f"{name} has said this before, or is out.")

    # -- disputes ------------------------------------------------------------------------------

    def _convict(self, name: str, said: Accuse) -> None:
        """See whether a party told two different things in one phase."""
        key = _key(self.terms.parties[said.other])
        if not said.twice.convicts(self.told[said.phase], said.other, key):
            detail = f"of {said.other}, who did not sign both"
            self.faults.append(Fault(name, "false accusation", detail))
            return
        detail = f"it told different parties different things in phase {said.phase!r}"
        fault = Fault(said.other, "equivocation", detail)
        if fault not in self.faults:
            self.faults.append(fault)

    def _judge(self, name: str, said: Dispute) -> None:
        """Recompute the term from the secret of both, and see whose commitment is another."""
        other, keys = said.other, self.joined
        statement = dispute_transcript(self.session, name, other)
        if not hold(said.proof.equations(statement, keys[name].key, keys[other].key)):
            self.faults.append(Fault(name, "false dispute", f"with {other}: the proof is wrong"))
            return
        size = self.terms.size
        for each, opposite in ((name, other), (other, name)):
            terms = pairwise(said.proof.secret, self.session, each, opposite, size)
            if tuple(commitment(*term) for term in terms) != self.pair(each, opposite):
                self.lost[each] = opposite
                detail = f"its term with {opposite} is not the one that both agreed on"
                self.faults.append(Fault(each, "pairwise terms do not cancel", detail))


def _announces(keeper: bytes, said: Entry) -> bool:
    """Whether an announcement is as the keeper makes it, or unsigned where there is none."""
    return signed_by(keeper, said) if keeper else said.signature == ""


def _key(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except (ValueError, TypeError):
        return b""


def same_data(terms: Terms) -> tuple[object, ...]:
    """What two runs have in common that are on the same values."""
    scale = tuple(terms.names), tuple(terms.low), tuple(terms.high), tuple(terms.unit)
    return terms.data, scale, terms.grain, terms.one_hot


def dispute_transcript(session: bytes, name: str, other: str) -> Transcript:
    transcript = Transcript("dispute", session, name)
    transcript.say("other", other.encode())
    return transcript


def pairwise(
    secret: Point, session: bytes, name: str, other: str, size: int
) -> list[tuple[int, int]]:
    """Values and blindings of a party's terms with another, who has the opposite ones.

    Even over all scalars, so one term hides anything; both come from a Diffie-Hellman secret.
    """
    first, second = sorted((name, other))
    seed = b"archipel pairwise\0" + secret.encoded + session
    for each in (first.encode(), second.encode()):
        seed += len(each).to_bytes(8, "big") + each
    raw = shake_256(seed).digest(128 * size)
    sign = 1 if name == first else -1
    numbers = [int.from_bytes(raw[i : i + 64], "big") for i in range(0, len(raw), 64)]
    signed = [sign * number % ORDER for number in numbers]
    return list(zip(signed[::2], signed[1::2], strict=True))
