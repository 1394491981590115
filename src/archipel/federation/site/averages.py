# SPDX-License-Identifier: Apache-2.0
"""A site's part in a private mean of plain numbers: what it is shown, agrees to and is charged for.

The numbers are the site's own, given with the question. What they say of people counts against the
same budget as studies do: against that of the table they come from, if one is named, and otherwise
against one account of all such numbers. It is in the ledger before anything leaves.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING

from archipel.errors import ArchipelError
from archipel.federation.site import ledger
from archipel.federation.site.policy import Overspent, Withheld
from archipel.privacy.release import Gaussian, Release, written

if TYPE_CHECKING:
    from archipel.aggregation.averaging import Question
    from archipel.federation.numbers import NumbersFile
    from archipel.federation.site.site import Site
    from archipel.verifiable.terms import Terms

NUMBERS = "numbers"  # the account of numbers that come from no table that is named
_DIGITS = 3


def release_of(question: Question, parties: int) -> Release:
    """What a mean tells of one person, as a ledger adds it up: noise over what a person moves.

    It tells most to those who know the noise of all that may collude, of the fewest that may
    publish (`Plan.mu`).
    """
    plan = question.plan(parties)
    return Release(Gaussian(1 / plan.mu(question.moved, len(question.names))))


@dataclass(frozen=True)
class Asked:
    """A private mean that this site is asked for."""

    site: Site
    file: NumbersFile
    parties: tuple[str, ...]  # by name
    table: str = NUMBERS  # whose account is charged
    through: str = ""  # who passes on what is said; empty between peers

    terms: Terms | None = None  # with proofs

    @property
    def release(self) -> Release:
        """What it tells of one person, at most."""
        question, n = self.file.question, len(self.parties)
        if self.terms is None:
            return release_of(question, n)
        found = self.terms.release(question.least(n))
        assert found is not None  # terms have honest parties
        return found

    def review(self) -> list[str]:
        """What would leave, line by line."""
        question, policy = self.file.question, self.site.policy
        account = ledger.account_of(self.site, self.file.session, self.table)
        before = account.epsilon(policy.delta)
        after = account.epsilon(policy.delta, [self.release])
        whom = (
            "every person" if question.contribution is not None else "every party with its people"
        )
        ranges = [
            f"{name} ({low:g} to {high:g})"
            for name, low, high in zip(question.names, question.low, question.high, strict=True)
        ]
        lines = [
            f"Mean of {', '.join(ranges)} over {len(self.parties)} parties: "
            f"{', '.join(self.parties)}.",
            f"What leaves: {len(question.names)} number(s), hidden by terms that cancel in the mean"
            + (f", through {self.through}, which learns the mean and no more." if self.through
               else "; everybody learns the mean and no more."),
            f"Promised to {whom}: epsilon {question.epsilon:g}, delta {question.delta:g}, if "
            f"{question.honest:.0%} of the parties do not collude.",
            f"Charged to {_shown(self.table)}: ε = {before:.{_DIGITS}g} was spent, "
            f"{after:.{_DIGITS}g} with this, at δ = {policy.delta:g}"
            + (f", of a budget of {policy.epsilon:g}." if policy.epsilon is not None
               else "; the policy sets no budget (epsilon)."),
        ]  # fmt: skip
        if question.contribution is not None:
            moved = [
                f"{name} by {each:g}"
                for name, each in zip(question.names, question.contribution, strict=True)
            ]
            lines.insert(
                1, f"One person moves {', '.join(moved)} at most: that is for you to know."
            )
        if self.terms is not None:
            lines.insert(2, "Proofs of all that go to a public file that anybody may read.")
        return lines

    def refuse(self) -> None:
        """Say which of this site's rules a mean does not meet."""
        policy, least = self.site.policy, self.file.question.least(len(self.parties))
        for entry in ledger.entries(self.site):
            if entry.study == self.file.session:
                raise ArchipelError(
                    f"average.run = {self.file.run}: {self.site.name} has answered this on "
                    f"{entry.time[:19]}, and again costs another epsilon; give run = "
                    f"{self.file.run + 1} in everybody's file."
                )
        if least < policy.least_sites:
            raise Withheld(
                f"a mean of {least} parties: this site's policy wants {policy.least_sites} "
                "(least_sites), so nothing is sent."
            )
        if policy.algorithms and "average" not in policy.algorithms:
            raise Withheld(
                f"average: this site's policy has {', '.join(policy.algorithms)} alone "
                "(algorithms), so nothing is sent."
            )
        self._refuse_now(to_come=True)

    def _refuse_now(self, to_come: bool = False) -> None:
        policy = self.site.policy
        if self.site.paused:
            raise Withheld(
                f"home = '{self.site.home}': is paused, so nothing is sent; 'archipel site resume' "
                "ends that."
            )
        if policy.epsilon is None:
            return
        account = ledger.account_of(self.site, self.file.session, self.table, verified=False)
        more = [*(account.to_come if to_come else ()), self.release]
        after = account.epsilon(policy.delta, more)
        if after > policy.epsilon:
            plans = " and what approved studies still plan" if to_come and account.planned else ""
            raise Overspent(
                f"epsilon = {self.file.question.epsilon:g}: with what was spent of "
                f"{_shown(self.table)}{plans} it would be ε = {after:.{_DIGITS}g} at δ = "
                f"{policy.delta:g}, above this site's budget epsilon = {policy.epsilon:g}; nothing "
                "is sent."
            )

    def approve(self) -> None:
        """Write down that this site agrees to exactly this."""
        question = self.file.question
        self.site.audit.append(
            "average", study=self.file.session, names=", ".join(question.names),
            parties=", ".join(self.parties), epsilon=question.epsilon, delta=question.delta,
            table=self.table,
        )  # fmt: skip

    def charge(self) -> None:
        """Write down what is about to leave; refuse what the budget does not bear any more."""
        question = self.file.question
        with ledger.charging(self.site):
            self._refuse_now()
            self.site.audit.append(
                ledger.SPENT, study=self.file.session, round=1, table=self.table,
                unit="record" if question.contribution is not None else "party",
                neighbours="add_or_remove", delta=float(question.delta), of=1,
                releases=json.dumps([written(self.release)]), noise=os.urandom(16).hex(),
            )  # fmt: skip


def account_named(table: Path | None) -> str:
    """The account of a table, by the hash of its file, as studies have it."""
    if table is None:
        return NUMBERS
    try:
        with table.open("rb") as file:
            return file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ArchipelError(f"--table '{table}': cannot be read ({error.strerror}).") from None


def _shown(table: str) -> str:
    return "plain numbers" if table == NUMBERS else f"table {table[:12]}"
