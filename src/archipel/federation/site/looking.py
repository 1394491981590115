# SPDX-License-Identifier: Apache-2.0
"""What a study would mean at a site, before anything is decided there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from archipel.engines.checks import check_fit
from archipel.engines.network.fitting import fitted
from archipel.federation import approval
from archipel.federation.site.exposure import Exposure, Rows, exposure
from archipel.federation.site.review import Review
from archipel.tree import leaves

if TYPE_CHECKING:
    from torch import Tensor

    from archipel.data.federation import Federation
    from archipel.exchange.anatomy import Anatomy
    from archipel.federation.site.site import Site
    from archipel.study.file import Study


def exposure_of(study: Study, data: Federation, rows: Rows | None = None) -> Exposure:
    """What a study would make leave; `data` may be made up, of its form."""
    return _look(study, data, rows)[0]


def _look(
    study: Study, data: Federation, rows: Rows | None
) -> tuple[Exposure, Anatomy, list[Tensor]]:
    model = approval.model_of(study, data)
    check_fit(model, data)
    algorithm, seed = study.algorithm_object, study.study.seed
    _, anatomy = fitted(algorithm, data, model, 0, seed, study.wire_object)
    mixed = leaves(anatomy.mixed)
    counts = (None, None) if rows is None else rows
    return exposure(study, model, data, anatomy, mixed, *counts), anatomy, mixed


def review_at(
    site: Site, text: bytes, data: Federation, members: Sequence[str], rows: Rows | None = None
) -> str:
    """What approving would mean; `rows` are those of the table that is bound."""
    study, digest = approval.read(text), approval.hash_of(text)
    found, anatomy, mixed = _look(study, data, rows)
    approved = [each for each in site.site_studies.approved() if each != digest]
    before = [each for each in approved if site.site_studies.name(each) == study.name]
    changes = approval.difference(site.site_studies.text(before[-1]), text) if before else []
    return Review(
        study, digest, found, anatomy, site.policy, members, mixed, changes,
        site.site_studies.namesakes(study.name, besides=digest),
    ).text()  # fmt: skip
