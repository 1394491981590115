# SPDX-License-Identifier: Apache-2.0
"""What a site has spent of its privacy, by study and by table, and what is left of its budget."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from archipel.federation.site import ledger
from archipel.federation.site.account import epsilon_of
from archipel.federation.site.reserved import plans
from archipel.privacy.release import Release

if TYPE_CHECKING:
    from archipel.federation.site.site import Site


class OfStudy(NamedTuple):
    """What one study spent, and may spend."""

    epsilon: float
    planned: float
    delta: float  # of its promise


class OfTable(NamedTuple):
    """What all studies spent of a table, or of several that stand in one another's place."""

    tables: list[str]
    studies: int
    epsilon: float  # infinite where a study promised nothing
    delta: float  # of the site's policy
    budget: float | None
    left: float | None  # of the budget
    planned: float  # ε with what approved studies still plan
    planning: list[str]  # those studies

    @property
    def is_counted(self) -> bool:
        """Whether anything was promised of it, or a budget set."""
        return self.epsilon < inf or self.budget is not None

    @property
    def text(self) -> str:
        name = self.tables[-1][:12]
        count = f"{self.studies} stud{'y' if self.studies == 1 else 'ies'}"
        if self.epsilon == inf:
            return f"Table {name}: {count}, one of which promised nothing: no ε is enough."
        said = f"Table {name}: ε = {self.epsilon:.3g} at δ = {self.delta:g} spent by {count}"
        if self.budget is None:
            said += "; the policy sets no budget (epsilon)."
        else:
            said += f", of a budget of {self.budget:g}; {self.left:.3g} is left."
        if self.planning:
            names = ", ".join(self.planning)
            said += f" With what approved studies still plan ({names}) it is {self.planned:.3g}."
        return said


def spent_by(site: Site) -> dict[str, OfStudy]:
    """What each study spent that promised privacy."""
    found: dict[str, OfStudy] = {}
    entries, planned = ledger.entries(site), plans(site)
    for study in dict.fromkeys(each.study for each in entries):
        mine = [each for each in entries if each.study == study]
        last = mine[-1]
        released = [release for each in mine for release in each.by_record]
        whole: Sequence[Release] = [
            Release(each.mechanism, each.sampling, each.times * last.of) for each in last.by_record
        ]  # of an older version, which reserved nothing
        if study in planned:
            whole = planned[study].releases
        found[study] = OfStudy(
            epsilon_of(released, last.delta), epsilon_of(whole, last.delta), last.delta
        )
    return found


def tables(site: Site) -> list[OfTable]:
    """What was spent of each table, the oldest first."""
    policy, done, found = site.policy, set[str](), []
    for table in ledger.tables(site):
        if table in done:
            continue
        together = ledger.together(site, table)
        done |= together
        account = ledger.account_of(site, "", table, verified=False)
        spent = account.epsilon(policy.delta)
        left = None if policy.epsilon is None else max(0.0, policy.epsilon - spent)
        studies = len(ledger.studies(site, together))
        planned = account.epsilon(policy.delta, account.to_come)
        found.append(
            OfTable(
                sorted(together), studies, spent, policy.delta, policy.epsilon, left, planned,
                [each.study for each in account.planned],
            )
        )  # fmt: skip
    return found
