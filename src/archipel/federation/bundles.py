# SPDX-License-Identifier: Apache-2.0
"""Bundles of studies between institutions: the coordinator's model, and a site's or peer's own.

The coordinator has no row of anybody's: what turns a table into features stands in the study's
schema and in the scale that sites made of their sums.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from archipel.bundle.writing import AVERAGED, Source, write
from archipel.data.features import Features
from archipel.data.federation import Federation
from archipel.engines.network.party_state import PartyState
from archipel.engines.network.scoring import Learnt
from archipel.errors import ArchipelError
from archipel.exchange.boxes import Boxes, is_peer
from archipel.exchange.statistics import keep_own
from archipel.federation import scale
from archipel.federation.site.binding import schema_of
from archipel.runs.run import Run
from archipel.store.folder import Folder
from archipel.study.file import Study

if TYPE_CHECKING:
    from archipel.federation.site.site import Site

_TOGETHER = (
    "Every site's rows stayed at the site. The coordinator saw each site's updates of the model, "
    "over TLS, as they are."
)
_AMONG_PEERS = (
    "Every peer's rows stayed with it. Its neighbours saw its models, over TLS, as they are."
)


def of_run(run: Run, party: str | None = None) -> Source:
    """The shared model of a study that the coordinator led."""
    if not isinstance(run.study, Study) or run.folder is None or not run.history:
        raise ArchipelError(f"run '{run.name}' has no round to show for yet: let it go on.")
    if is_peer(run.algorithm) or run.vector.numel() == 0:
        raise ArchipelError(
            f"run '{run.name}': peers keep their models; each has its bundle in its own folder."
        )
    if party is not None:
        raise ArchipelError(
            f"--party {party}: sites' own models are at the sites; there, 'archipel site "
            "personalise' writes a bundle."
        )
    if keep_own(Boxes(run.algorithm), run.task_model):
        raise ArchipelError(
            f"run '{run.name}': every site keeps its own statistics of BatchNorm (model.statistics "
            "= \"own\"); there, 'archipel site personalise' writes a bundle."
        )
    folder = Folder(run.folder)
    row = folder.journal.row()
    folder.journal.close()
    digest, text = row["hash"], row["description"]["text"].encode()
    features = _features(run.study, scale.path_of(run.folder.parents[1], digest))
    return Source(
        run.study,
        text,
        digest,
        replace(run.data, features=features, scan=False),
        run.task_model,
        run.vector,
        run.buffers,
        f"the model that {run.data.training} sites share",
        _trained(run.data),
        run.done,
        "each site's own test points, as a mean over sites (by the number of their test points "
        "where all sites tell it)",
        reported=run.metrics,
        statistics=AVERAGED if len(run.task_model.running) else "",
        together=_TOGETHER,
    )


def of_site(
    site: Site, study: str, party_state: PartyState, data: Federation, model: Learnt, rounds: int
) -> Path | None:
    """Write the bundle of the model that a site uses after so many rounds; return its folder.

    None where the site predicts by more than a model: its rows go into no bundle.
    """
    described, boxes = site.site_studies.read(study), party_state.boxes
    if boxes.has_predict:
        return None
    own = boxes.peer or boxes.has_personal
    has_own_buffers = bool(len(party_state.model.running)) and (
        own or keep_own(boxes, party_state.model)
    )
    statistics = AVERAGED if len(party_state.model.running) else ""
    source = Source(
        described,
        site.site_studies.text(study),
        study,
        data,
        party_state.model,
        *model,
        f"{site.name}'s own model" if own else "the model that sites share",
        f"{site.name} and others; how many points is not told here",
        rounds,
        f"{site.name}'s own test points",
        party_state.score(model, rounds),
        party=site.name if own or has_own_buffers else None,
        statistics=f"{site.name}'s own" if has_own_buffers else statistics,
        together=_AMONG_PEERS if boxes.peer else _TOGETHER,
    )
    folder = site.site_studies.folder(study) / "bundle"
    write(source, folder, again=True)
    return folder


def _features(study: Study, path: Path) -> Features:
    """How every site's table became features."""
    if study.data.schema is None:
        if study.data.name is None:
            raise ArchipelError(
                f"study {study.name}: it names no columns ([data.schema]) and its tables are "
                "elsewhere, so nobody here knows how a row becomes features; describe them."
            )
        return study.federation().features
    schema = schema_of(study)
    if not study.scaled:
        return Features(schema)
    if not path.exists():
        raise ArchipelError(f"'{path}': the scale of the study's features is gone; put it back.")
    return Features.of(schema, scale.read(path))


def _trained(data: Federation) -> str:
    """Sites and points, as far as sites told."""
    untold = sum(each is None for each in data.about.counts)
    told = f"{data.parties} sites"
    if untold:
        return f"{told}; how many points is not told by {untold} of them"
    return f"{told}, {int(data.n.sum())} training points and {int(data.n_test.sum())} test points"
