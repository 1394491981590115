# SPDX-License-Identifier: Apache-2.0
"""A site's part in a study: its state as a party, under the site's own rules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import load_file, save

from archipel.engines.network.party_state import PartyState
from archipel.federation import approval
from archipel.federation.site import ledger
from archipel.federation.site.acquaintances import Acquaintances
from archipel.federation.site.exposure import Rows
from archipel.federation.site.looking import exposure_at
from archipel.federation.site.policy import Standing
from archipel.federation.site.reserved import reserve
from archipel.store.files import write

if TYPE_CHECKING:
    from archipel.data.federation import Federation
    from archipel.federation.site.site import Site
    from archipel.privacy.promise import Kept


def party_state_at(
    site: Site, study: str, data: Federation, parties: int | None = None, edges: int = 0
) -> tuple[PartyState, Path]:
    """A site's state as a party of a study that it approved, and where that lies.

    `parties` and `edges` are what a peer knows of the graph: how many there are, and neighbours of
    one at most.
    """
    site.assure_approved(study)
    described = site.site_studies.read(study)
    rows = Rows(int(data.n.sum()), int(data.n_test.sum()))
    charging = ledger.Charging(site, study, ledger.table_of(site, described, data))
    found, policy = exposure_at(site, study, data, rows, charging.table), site.policy
    policy.refuse(found)
    if found.planned is not None and not site.site_studies.is_over(study):
        reserve(site, study, charging.table, found.planned)
    path = site.site_studies.folder(study) / "state.safetensors"
    model, party = approval.model_of(described, data), site.site_studies.party(study)
    about = described.study

    def charge(t: int, kept: Kept, noise: bytes) -> None:
        if not party_state.boxes.peer:  # a peer has kept its own
            write(path, save(party_state.state()))  # with what the noise is drawn of
        charging(t, kept, noise)

    party_state = PartyState(
        described.algorithm_object, data, model, party=party, seed=about.seed,
        rounds=about.rounds, evaluate_every=about.evaluate_every,
        rules=Standing(site.home, found, policy.tells_counts), wire=described.wire_object,
        privacy=described.promise, charge=charge, separation=described.round.separation or 1,
        study=study, identities=Acquaintances(site, study), parties=parties, edges=edges,
    )  # fmt: skip
    if described.promise is None:
        charging.unbounded()
    if path.exists():
        if described.promise is not None:
            charging.assure_whole(site.site_studies.paid(study))
        party_state.restore(load_file(path))
    return party_state, path
