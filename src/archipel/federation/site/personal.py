# SPDX-License-Identifier: Apache-2.0
"""The model of a finished study at a site, and the site's own where the algorithm makes one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from safetensors.torch import save

from archipel.engines.network.party_loop import PartyLoop
from archipel.errors import ArchipelError
from archipel.federation import bundles
from archipel.federation.site.part import party_state_at
from archipel.store.files import write

if TYPE_CHECKING:
    from archipel.data.federation import Federation
    from archipel.federation.site.site import Site


async def personalise(site: Site, study: str, data: Federation) -> dict[str, float]:
    """Get the model of a finished study, this site's own where the algorithm makes one.

    It is written beside the approval, with a bundle to apply it with; returns its metrics on
    this site's test points.
    """
    if site.paused:
        raise ArchipelError(
            "this site is paused, and a model of its own may take questions computed from its "
            "rows: say 'archipel site resume' first."
        )
    link = site.link()
    try:
        await site.place(link, study, patient=False)
        party_state, path = party_state_at(site, study, data)
        model, rounds = await PartyLoop(party_state, link, study, sign=site.sign).model()
    finally:
        await link.close()
    module = party_state.model.to_module(*model)
    tensors = {name: tensor.contiguous() for name, tensor in module.state_dict().items()}
    write(path.with_name("model.safetensors"), save(tensors))
    bundles.of_site(site, study, party_state, data, model, rounds)
    site.audit.append("personalised", study=study, rounds=rounds)
    return party_state.score(model, rounds, own=party_state.has_personal)
