# SPDX-License-Identifier: Apache-2.0
"""What a site spent of its privacy: of each table, over all studies, in its own audit log.

An entry "spent" is on the disk before a round is computed that releases anything: so a site that is
killed at any moment may have counted a round that has not left, and never the other way round. The
entry names the round's noise, which is of secrets that were on the disk before: after the kill the
round is computed with the same noise and is the same entry. Only other noise is charged again.

Of a study that promises nothing an entry "unbounded" is made, and no ε is enough for its table.

A table is known by the hash of its file. One that was bound in the place of another has mostly the
same rows, so both have one account.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, cast

from archipel.errors import ArchipelError
from archipel.federation.audit import Entry, check
from archipel.federation.site import binding
from archipel.federation.site.account import Account, Planned, for_records
from archipel.federation.site.policy import Overspent
from archipel.federation.site.reserved import OVER, RESERVED, Reserved, standing
from archipel.privacy.release import Neighbours, Release, read, written

if TYPE_CHECKING:
    from archipel.data.federation import Federation
    from archipel.federation.site.site import Site
    from archipel.privacy.promise import Kept
    from archipel.study.file import Study

SPENT, UNBOUNDED = "spent", "unbounded"
_one_at_a_time = Lock()  # studies of a site run side by side


class Spent(NamedTuple):
    """One entry: what a round released of a table."""

    number: int  # in the audit log
    time: str
    study: str
    round: int  # from 1
    table: str
    unit: str
    neighbours: Neighbours
    delta: float  # of the promise
    of: int  # rounds that the promise was planned for
    releases: tuple[Release, ...]  # of this round
    noise: str = ""  # names the noise of this attempt; empty in entries of older versions

    @property
    def by_record(self) -> tuple[Release, ...]:
        """The same as one record's account has it."""
        return for_records(self.releases, self.neighbours)


# -- reading ---------------------------------------------------------------------------------------


def entries(site: Site, verified: bool = True) -> list[Spent]:
    """All that was spent, in order; every line of the log is checked unless it was before."""
    return [_spent(each) for each in _lines(site, verified, SPENT)]


def _lines(site: Site, verified: bool, *kinds: str) -> list[Entry]:
    log = site.audit
    if verified and log.path.exists():
        log.mend()  # what a stopped writer left was not written, and nothing of it was released
        check(log.path, site.identity.public)
    return list(log.entries(*kinds))


def _spent(entry: Entry) -> Spent:
    detail = entry.detail
    try:
        releases = tuple(map(read, json.loads(str(detail["releases"]))))
        return Spent(
            entry.number, entry.time, str(detail["study"]), int(str(detail["round"])),
            str(detail["table"]), str(detail["unit"]),
            cast(Neighbours, str(detail["neighbours"])), float(str(detail["delta"])),
            int(str(detail["of"])), releases, str(detail.get("noise", "")),
        )  # fmt: skip
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ArchipelError(
            f"entry {entry.number} of the audit log: not what a round spent ({error}); it was "
            "written by another version."
        ) from None


def account_of(site: Site, study: str, table: str, verified: bool = True) -> Account:
    """What was spent of a table, and of those in whose place it stands, and what others plan."""
    tables = together(site, table)
    lines = _lines(site, verified, SPENT, UNBOUNDED, RESERVED, *OVER)
    spent = [_spent(each) for each in lines if each.what == SPENT]
    here = [each for each in spent if each.table in tables]
    return Account(
        tuple(r for each in here if each.study != study for r in each.by_record),
        tuple(r for each in here if each.study == study for r in each.by_record),
        tuple(
            str(each.detail["study"])
            for each in lines
            if each.what == UNBOUNDED and each.detail["table"] in tables
        ),
        tuple(_to_come(site, study, standing(lines), here, tables)),
    )


def _to_come(
    site: Site, study: str, reserved: Mapping[str, Reserved], spent: Sequence[Spent],
    tables: set[str],
) -> Iterator[Planned]:  # fmt: skip
    """What others plan of these tables that were approved before a study, if it is one."""
    mine = reserved.get(study)
    for each in reserved.values():
        before = mine is None or each.number < mine.number
        approved = each.study != study and site.site_studies.has_approved(each.study)
        if each.table in tables and before and approved:
            gone = [r for entry in spent if entry.study == each.study for r in entry.by_record]
            if left := each.left(gone):
                name = site.site_studies.name(each.study) or each.study[:12]
                yield Planned(name, left)


def together(site: Site, table: str) -> set[str]:
    """A table with all that share its account: those before it, and whatever they share it with."""
    groups = [{bound.sha256, *bound.before} for bound in binding.bound(site.home / "data")]
    found = {table}
    while more := [group for group in groups if group & found and not group <= found]:
        found = found.union(*more)
    return found


def tables(site: Site) -> list[str]:
    """The tables of which anything was spent or reserved, in that order."""
    found = _lines(site, True, SPENT, UNBOUNDED, RESERVED)
    return list(dict.fromkeys(str(each.detail["table"]) for each in found))


def studies(site: Site, tables: set[str]) -> set[str]:
    """The studies that spent anything of these tables."""
    found = _lines(site, False, SPENT, UNBOUNDED)
    return {str(each.detail["study"]) for each in found if each.detail["table"] in tables}


def table_of(site: Site, study: Study, data: Federation | None = None) -> str:
    """Names the table that a study is computed on: by its file, or else by its numbers.

    Empty where no table is bound, and none is given.
    """
    if study.data.schema is not None and binding.is_bound(site.home / "data", study):
        return binding.find(site.home / "data", study).sha256
    if data is None:
        return ""
    numbers = (each.numpy().tobytes() for each in (data.x, data.y, data.offsets, data.test_from))
    return sha256(b"".join(sha256(each).digest() for each in numbers)).hexdigest()


# -- writing ---------------------------------------------------------------------------------------


@contextmanager
def charging(site: Site) -> Iterator[None]:
    """One entry at a time, whichever thread or process of the site makes it: all see the sum."""
    with _one_at_a_time, (site.home / "charging").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class Charging:
    """Where the rounds of one study at a site are charged."""

    site: Site
    study: str
    table: str

    def __call__(self, t: int, kept: Kept, noise: bytes) -> None:
        """Write down what round t is about to cost; refuse what the site's budget does not bear.

        What is there under the name of this noise is the same, and not written again.
        """
        (k,) = kept.uses
        with charging(self.site):
            spent = entries(self.site, verified=False)
            if any(self._is(each, t, noise) for each in spent):
                return
            before = sum(each.study == self.study for each in spent)
            releases = kept.charged(k, before)
            self._refuse(t, kept, before, for_records(releases, kept.neighbours))
            self.site.audit.append(
                SPENT, study=self.study, round=t + 1, table=self.table, unit=kept.promise.unit,
                neighbours=kept.neighbours, delta=float(kept.promise.delta), of=kept.rounds,
                releases=json.dumps([written(each) for each in releases]), noise=noise.hex(),
            )  # fmt: skip

    def _is(self, entry: Spent, t: int, noise: bytes) -> bool:
        return (entry.study, entry.round, entry.noise) == (self.study, t + 1, noise.hex())

    def _refuse(self, t: int, kept: Kept, before: int, releases: Sequence[Release]) -> None:
        if before >= kept.rounds:
            raise Overspent(
                f"round {t + 1}: this site's noise was planned for {kept.rounds} rounds of this "
                "study, which are spent, since some were begun anew; it takes no further part."
            )
        policy = self.site.policy
        if policy.epsilon is None:
            return
        spent = account_of(self.site, self.study, self.table, verified=False)
        after = spent.epsilon(policy.delta, releases)
        if after > policy.epsilon:
            raise Overspent(
                f"round {t + 1}: would bring what was spent of this table to ε = {after:.3g} at "
                f"δ = {policy.delta:g}, above this site's budget epsilon = {policy.epsilon:g}; "
                "nothing is computed."
            )

    def unbounded(self) -> None:
        """Write down, once, that a study which promises nothing is computed on the table."""
        known = self.site.audit.entries(UNBOUNDED)
        mine = {"study": self.study, "table": self.table}
        if all(entry.detail != mine for entry in known):
            self.site.audit.append(UNBOUNDED, **mine)

    def assure_whole(self, last: int) -> None:
        """Refuse a log that names nothing spent in round `last`, which this site worked in."""
        named = [each.round for each in entries(self.site) if each.study == self.study]
        if last >= 0 and last + 1 not in named:
            raise ArchipelError(
                f"'{self.site.audit.path}': names nothing spent in round {last + 1}, in which this "
                "site worked: the log was cut or exchanged; bring back the one there was."
            )
