# SPDX-License-Identifier: Apache-2.0
"""What studies that a site approved still plan to spend of its tables: kept free for them.

An entry "reserved" in the site's audit log has all that a study plans to release of each record.
It stands until the study is over here, or the site rejects or leaves it; what was spent meanwhile
is in the ledger, and the rest is free again. Of two studies the one approved first comes first.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from archipel.errors import ArchipelError
from archipel.privacy.release import Gaussian, Release, read, together, written
from archipel.store.files import locked

if TYPE_CHECKING:
    from archipel.federation.audit import Entry
    from archipel.federation.site.site import Site

RESERVED = "reserved"
OVER = ("done", "withdrawn", "rejected")  # after which a study has nothing reserved


class Reserved(NamedTuple):
    """What one study plans to release of each record of a table, in all its rounds."""

    number: int  # in the audit log
    study: str
    table: str
    releases: tuple[Release, ...]

    def left(self, spent: Iterable[Release]) -> tuple[Release, ...]:
        """What is to come after so much was spent."""
        return _without(self.releases, spent)


def standing(lines: Iterable[Entry]) -> dict[str, Reserved]:
    """What is reserved, by study: as the entries of a log say, in their order."""
    found: dict[str, Reserved] = {}
    for each in lines:
        study = str(each.detail.get("study"))
        if each.what == RESERVED:
            found[study] = _reserved(each)
        elif each.what in OVER:
            found.pop(study, None)
    return found


def plans(site: Site) -> dict[str, Reserved]:
    """What every study plans, or planned that is over."""
    return standing(site.audit.entries(RESERVED))


def _reserved(entry: Entry) -> Reserved:
    detail = entry.detail
    try:
        releases = tuple(map(read, json.loads(str(detail["releases"]))))
        return Reserved(entry.number, str(detail["study"]), str(detail["table"]), releases)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ArchipelError(
            f"entry {entry.number} of the audit log: not what a study reserves ({error}); it was "
            "written by another version."
        ) from None


def reserve(site: Site, study: str, table: str, releases: Sequence[Release]) -> None:
    """Keep free what a study plans to release of a table, unless that is done."""
    planned = together(releases)
    before = standing(site.audit.entries(RESERVED, *OVER)).get(study)
    if before is None or (before.table, before.releases) != (table, planned):
        said = json.dumps([written(each) for each in planned])
        site.audit.append(RESERVED, study=study, table=table, releases=said)


@contextmanager
def deciding(site: Site) -> Iterator[None]:
    """One decision at a time: two that look at the same budget would both find it free."""
    with locked(site.home / "deciding") as mine:
        if not mine:
            raise ArchipelError(
                f"home = '{site.home}': another study is being approved there now; try again."
            )
        yield


def _without(planned: Iterable[Release], spent: Iterable[Release]) -> tuple[Release, ...]:
    """Releases that are left of a plan, equal ones counted together.

    Gaussian noise on what nobody is sampled for adds up by 1 / z^2, however it is divided.

    >>> half = Release(Gaussian(0.5))
    >>> _without([Release(Gaussian(1.0), None, 5)], [Release(Gaussian(1.0)), half])
    ()
    >>> _without([Release(Gaussian(1.0), None, 5)], [Release(Gaussian(1.0))])
    (Release(mechanism=Gaussian(noise=0.5), sampling=None, times=1),)
    """
    planned, spent = together(planned), together(spent)
    gone = Counter({(each.mechanism, each.sampling): each.times for each in spent})
    left = [
        Release(each.mechanism, each.sampling, each.times - gone[each.mechanism, each.sampling])
        for each in planned
        if not _is_plain(each) and each.times > gone[each.mechanism, each.sampling]
    ]
    whole, past = (sum(map(_precision, filter(_is_plain, of))) for of in (planned, spent))
    if whole - past > 1e-9 * whole:
        left.append(Release(Gaussian((whole - past) ** -0.5)))
    return tuple(left)


def _is_plain(release: Release) -> bool:
    return isinstance(release.mechanism, Gaussian) and release.sampling is None


def _precision(release: Release) -> float:
    assert isinstance(release.mechanism, Gaussian)
    return release.times / release.mechanism.noise**2
