# SPDX-License-Identifier: Apache-2.0
"""A party of a verifiable sum: five short answers, each a signed entry for the bulletin.

GOPA (Sabater, Bellet, Ramon, Machine Learning 2022, https://arxiv.org/abs/2006.07218), Algorithm 1
with the verification of section 5, among parties that may lie.

    join      a key, and k neighbours picked at random
    commit    commitments to x, to every pairwise term and to the bits of the noise; x is in range
    reveal    its share of the coins, once everybody is bound to their bits
    publish   s x + Σ pairwise terms + noise in the clear, and that the noise is what the coins make
    correct   the terms with neighbours that never published, opened

The published value is checked by adding up commitments: s V_x + Σ C + V_noise must open to it, with
blindings that add up as well, and of which x's own hides all others. Terms of two neighbours come
from one Diffie-Hellman secret, value and blinding, so their two commitments are opposite points. If
they are not, the honest one shows that secret, for this one term, and anybody sees who lied.

Departures: pairwise terms are even over the scalars of the group, not Gaussian: they hide perfectly
where honest parties are connected. Noise is of public coins (`noise.py`), where the paper proves an
approximate Gaussian. A party answers only what keeps the promised ε: it publishes and corrects only
while enough others are there.

A party must not be told of two bulletins: what it publishes stays hidden while its neighbours do
not open their terms with it. They do so only after "correct" was announced without its value. So
parties must see the same file, as in the paper; whoever keeps a value back from them and later
shows it to others has the terms of that party opened.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from random import SystemRandom

from archipel.errors import ArchipelError, BelowQuorum
from archipel.federation.certificates import Identity
from archipel.verifiable import bits
from archipel.verifiable.agreement import Twice
from archipel.verifiable.bits import Bits, Row, bits_of, weights_to
from archipel.verifiable.bulletin import Entry, entry
from archipel.verifiable.commitments import Shared, Zero, commitment
from archipel.verifiable.following import Run, dispute_transcript, pairwise
from archipel.verifiable.group import BASE, ORDER, Point, drawn
from archipel.verifiable.messages import Accuse, Commit, Correct, Dispute, Join, Publish, Reveal
from archipel.verifiable.noise import coins_of, turned
from archipel.verifiable.terms import Terms
from archipel.verifiable.transcript import Transcript

Term = tuple[int, int]  # value, blinding
Shown = tuple[tuple[Point, ...], tuple[Point, bits.Proof] | None, tuple[Zero, ...]]


@dataclass
class Secrets:
    """What a party draws for one run."""

    key: int = field(default_factory=drawn)
    share: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    values: list[Term] = field(default_factory=list)
    terms: dict[str, list[Term]] = field(default_factory=dict)  # with each neighbour
    noise: Bits | None = None


@dataclass
class Party:
    """One party, with its values; it may take part in several runs."""

    name: str
    values: Sequence[float]
    identity: Identity = field(default_factory=Identity.create)
    kept: dict[tuple[Point, ...], list[Term]] = field(default_factory=dict)  # by commitments
    _drawn: dict[bytes, Secrets] = field(default_factory=dict)

    def join(self, run: Run) -> Entry:
        """Say a key for this run alone, and pick neighbours."""
        others = [name for name in run.terms.parties if name != self.name]
        picks = SystemRandom().sample(others, run.terms.neighbours)
        mine = self._drawn[run.session] = Secrets()
        return self._say(run, "join", Join(mine.key * BASE, tuple(sorted(picks))).body)

    def commit(self, run: Run) -> Entry:
        """Bind itself to values, pairwise terms, bits of noise and its share of the coins."""
        terms, mine = run.terms, self._drawn[run.session]
        neighbours = run.neighbours(self.name)
        for other in neighbours:
            secret = mine.key * run.joined[other].key
            mine.terms[other] = pairwise(secret, run.session, self.name, other, terms.size)
        pairs = [tuple(commitment(*term) for term in mine.terms[other]) for other in neighbours]
        count = terms.size * len(terms.noise.weights)
        noise = mine.noise = bits.commit([secrets.randbits(1) for _ in range(count)])
        values, shown, same = self._values(run)
        share = sha256(mine.share).digest()
        said = Commit(values, shown, same, tuple(pairs), noise.point, share)
        return self._say(run, "commit", said.body)

    def disputes(self, run: Run) -> list[Entry]:
        """For each neighbour whose commitment is not its own's opposite: the secret of both."""
        mine, found = self._drawn[run.session], []
        for other in run.neighbours(self.name):
            if other in run.committed and not opposite(run, self.name, other):
                transcript = dispute_transcript(run.session, self.name, other)
                proof = Shared.prove(transcript, mine.key, run.joined[other].key)
                found.append(self._say(run, "dispute", Dispute(other, proof).body))
        return found

    def reveal(self, run: Run) -> Entry:
        """Show its share of the coins."""
        return self._say(run, "reveal", Reveal(self._drawn[run.session].share).body)

    def publish(self, run: Run) -> Entry:
        """Say the value with pairwise terms and noise, and prove that it is that."""
        terms, mine = run.terms, self._drawn[run.session]
        self._enough(run, len(run.active))
        noise = self._noise(run)
        blindings = [drawn() for _ in noise]
        shown = tuple(commitment(*pair) for pair in zip(noise, blindings, strict=True))
        rows = noise_rows(run, self.name, shown)
        assert mine.noise is not None
        transcript = Transcript("noise", run.session, self.name)
        proof = bits.prove(transcript, mine.noise, rows, blindings)
        s, known = terms.multiplier, mine.values
        joined = [mine.terms[v] for v in run.neighbours(self.name) if v in run.active]
        values, openings = [], []
        for i, (x, r) in enumerate(known):
            values.append((s * x + sum(term[i][0] for term in joined) + noise[i]) % ORDER)
            openings.append((s * r + sum(term[i][1] for term in joined) + blindings[i]) % ORDER)
        said = Publish(shown, proof, tuple(values), tuple(openings))
        return self._say(run, "publish", said.body)

    def corrections(self, run: Run) -> list[Entry]:
        """Open its terms with neighbours that never published."""
        mine, found = self._drawn[run.session], []
        gone = run.missing_neighbours(self.name)
        if gone:
            self._enough(run, len(run.published))
        for other in gone:
            values, openings = zip(*mine.terms[other], strict=True)
            found.append(self._say(run, "correct", Correct(other, values, openings).body))
        return found

    def seal(self, run: Run) -> Entry:
        """Sign all that was said: where there is no keeper."""
        return self._say(run, "seal", {})

    def accuse(self, run: Run, other: str, phase: str, twice: Twice) -> Entry:
        """Show two things that another party told in one phase."""
        return self._say(run, "accuse", Accuse(other, phase, twice).body)

    # -- pieces ------------------------------------------------------------------------------------

    def _values(self, run: Run) -> Shown:
        """Commitments to its values, and that they are in range, or those of an earlier run."""
        terms = run.terms
        steps = self._steps(terms)
        mine = [(step, drawn()) for step in steps]
        committed = tuple(commitment(*pair) for pair in mine)
        before = self.kept.get(tuple(run.earlier.get(self.name, ())))
        self._drawn[run.session].values = mine
        self.kept[committed] = mine
        if before is not None:
            transcript = Transcript("same", run.session, self.name)
            both = zip(mine, before, strict=True)
            return committed, None, tuple(Zero.prove(transcript, r - q) for (_, r), (_, q) in both)
        told = bits.commit(
            [bit for step, top in zip(steps, terms.tops, strict=True) for bit in bits_of(step, top)]
        )
        rows = value_rows(terms, committed)
        blindings = [r for _, r in mine] + [0] * (len(rows) - len(mine))
        transcript = Transcript("range", run.session, self.name)
        return committed, (told.point, bits.prove(transcript, told, rows, blindings)), ()

    def _steps(self, terms: Terms) -> list[int]:
        """Its values on the grid."""
        steps = terms.steps(self.values)
        if terms.one_hot and sum(steps) != 1:
            raise ArchipelError(f"values of {self.name!r}: exactly one must be 1, the others 0.")
        return steps

    def _noise(self, run: Run) -> list[int]:
        """What the coins make of the bits."""
        noise = self._drawn[run.session].noise
        assert noise is not None
        rest, found = iter(noise.values), []
        for weights, constant in noise_weights(run, self.name):
            found.append(constant + sum(weight * next(rest) for weight in weights))
        return found

    def _enough(self, run: Run, there: int) -> None:
        """Refuse where the sum over those that are there would tell more than was promised."""
        cost = run.terms.spent(there)
        if cost > run.terms.epsilon * (1 + 1e-9):
            raise BelowQuorum(
                f"{there} of {len(run.terms.parties)} parties are left: their sum would cost "
                f"epsilon = {cost:.3g}, more than the promised {run.terms.epsilon:g}; begin anew "
                "with a larger share of drop-outs."
            )

    def _say(self, run: Run, what: str, body: dict[str, object]) -> Entry:
        return entry(self.identity, what, self.name, run.seen, body)


def opposite(run: Run, name: str, other: str) -> bool:
    """Whether two neighbours' commitments cancel: the same points with the other sign."""
    pairs = zip(run.pair(name, other), run.pair(other, name), strict=True)
    return all(
        a.encoded[1:] == b.encoded[1:] and a.encoded[0] ^ b.encoded[0] == 1 for a, b in pairs
    )


def value_rows(terms: Terms, values: Sequence[Point]) -> list[Row]:
    """What is proved of values: each is in range, and a histogram's add up to 1."""
    rows, start = [], 0
    for top, point in zip(terms.tops, values, strict=True):
        rows.append(Row(weights_to(top), point, start))
        start += top.bit_length()
    return [*rows, Row([1] * terms.size, BASE)] if terms.one_hot else rows


def noise_weights(run: Run, name: str) -> list[tuple[list[int], int]]:
    """For each number, its bits' weights after the coins, and the constant."""
    own, size = run.terms.noise.weights, run.terms.size
    coins = coins_of(run.beacon, run.session, name, size * len(own))
    return [turned(own, coins[i : i + len(own)]) for i in range(0, len(coins), len(own))]


def noise_rows(run: Run, name: str, noise: Sequence[Point]) -> list[Row]:
    """What is proved of noise: it is what the coins make of the bits."""
    return [
        Row([w % ORDER for w in weights], point + -constant * BASE, i * len(weights))
        for i, ((weights, constant), point) in enumerate(
            zip(noise_weights(run, name), noise, strict=True)
        )
    ]
