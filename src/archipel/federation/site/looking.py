# SPDX-License-Identifier: Apache-2.0
"""What a study would mean at a site, before anything is decided there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from archipel.engines.checks import check_fit
from archipel.engines.network.fitting import fitted, keepable, of_size, protected
from archipel.engines.protection import Protection, simulated
from archipel.errors import ArchipelError
from archipel.federation import approval
from archipel.federation.confirmed import Confirmed
from archipel.federation.peer.known_keys import KnownKeys
from archipel.federation.site import ledger
from archipel.federation.site.account import NOTHING, Account, for_records
from archipel.federation.site.exposure import Exposure, Rows, exposure
from archipel.federation.site.review import Review

if TYPE_CHECKING:
    from torch import Tensor

    from archipel.data.federation import Federation
    from archipel.exchange.anatomy import Anatomy
    from archipel.federation.site.site import Site
    from archipel.models.model import Model
    from archipel.study.file import Study


def exposure_of(
    study: Study, data: Federation, rows: Rows | None = None, account: Account = NOTHING
) -> Exposure:
    """What a study would make leave; `data` may be made up, of its form."""
    return _look(study, data, rows, account)[0]


def exposure_at(
    site: Site, digest: str, data: Federation, rows: Rows | None, table: str = ""
) -> Exposure:
    """The same at a site, with what was spent of its table so far."""
    study = site.site_studies.read(digest)
    return exposure_of(study, data, rows, _account(site, digest, study, table))


def _account(site: Site, digest: str, study: Study, table: str = "") -> Account:
    table = table or ledger.table_of(site, study)
    found = ledger.account_of(site, digest, table) if table else NOTHING
    over = site.site_studies.is_over(digest)  # it plans nothing more, so nobody else is in its way
    return found._replace(planned=()) if over else found


def _look(
    study: Study, data: Federation, rows: Rows | None, account: Account
) -> tuple[Exposure, Anatomy, list[Tensor]]:
    model = approval.model_of(study, data)
    check_fit(model, data)
    algorithm, seed = study.algorithm_object, study.study.seed
    at = (algorithm, data, model, 0, seed, study.wire_object, 16)
    anatomy, planned, unkept = None, None, ""
    if study.promise is not None:
        try:
            keeps = _protection(study, data, model, None if rows is None else rows.training)
            _, anatomy = fitted(*at, keeps)
            if rows is not None:
                kept = keeps.kept
                planned = for_records(kept.releases(0, kept.rounds), kept.neighbours)
        except ArchipelError as error:
            unkept = str(error)
    if anatomy is None:
        _, anatomy = fitted(*at)
    mixed = anatomy.between
    counts = (None, None) if rows is None else rows
    found = exposure(study, model, data, anatomy, mixed, *counts)
    about = replace(found, promise=study.promise, unkept=unkept, planned=planned, account=account)
    return about, anatomy, mixed


def _protection(study: Study, data: Federation, model: Model, n: int | None) -> Protection:
    """What would keep a study's promise at a site of n training rows, or at any; else raises."""
    promise, about = study.promise, study.study
    assert promise is not None
    parts = (promise, study.algorithm_object)
    how: Any = {"seed": about.seed, "rounds": about.rounds, "wire": study.wire_object}
    if n is None:
        return keepable(*parts, data, model, **how)
    how |= {"noise": simulated(about.seed), "separation": study.round.separation or 1}
    return protected(*parts, of_size(data, n), model, [0], **how, parties=8)


def review_at(
    site: Site, text: bytes, data: Federation, members: Sequence[str], rows: Rows | None = None
) -> str:
    """What approving would mean; `rows` are those of the table that is bound."""
    study, digest = approval.read(text), approval.hash_of(text)
    account = _account(site, digest, study)
    found, anatomy, mixed = _look(study, data, rows, account)
    approved = [each for each in site.site_studies.approved() if each != digest]
    before = [each for each in approved if site.site_studies.name(each) == study.name]
    changes = approval.difference(site.site_studies.text(before[-1]), text) if before else []
    known, confirmed = KnownKeys(site.home / "peers.json").known(), Confirmed(site.home)
    keys, pinned = {name: each.identity for name, each in known.items()}, confirmed.all()
    lacking = confirmed.lacking(keys)
    return Review(
        study, digest, found, anatomy, site.policy, members, mixed, changes,
        site.site_studies.namesakes(study.name, besides=digest),
        [site.name, *keys], [site.name, *(name for name in pinned if name not in lacking)],
    ).text()  # fmt: skip
