# SPDX-License-Identifier: Apache-2.0
"""A study's scale made anew, where a site's sums turned out wrong."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from archipel.errors import ArchipelError, unknown
from archipel.federation import approval
from archipel.federation.coordinator.folder import CoordinatorFolder
from archipel.federation.scale import forget, path_of
from archipel.store.folder import Folder
from archipel.store.registry import Registry, Submission


def rescale(home: CoordinatorFolder, study: str, without: Sequence[str] = ()) -> Submission:
    """Have a study's scale made anew, from the sums of all sites but these.

    It works whether the coordinator is up or not, as long as the study is stopped and no round of
    it is done: models of different scales have nothing in common.
    """
    with Registry.read(home.database) as registry:
        found = home._find(registry, study)
        members = {d.site for d in registry.decisions(found.hash) if d.decision == "approved"}
    if not approval.read(bytes(found.text)).scaled:
        raise ArchipelError(f"study {found.name}: has no common scale, so none is made anew.")
    for site in without:
        if site not in members:
            raise unknown("site of this study", site, members)
    if not members - set(without):
        raise ArchipelError(
            f"study {found.name}: no site is left whose sums make the scale; leave out fewer."
        )
    if found.state == "running" and home.is_up:
        raise ArchipelError(
            f"study {found.name}: is running; say 'archipel coordinator stop {found.name}' first, "
            "and start it again afterwards."
        )
    with ExitStack() as stack:
        if Folder.exists(home.run_of(found.hash)):  # nobody runs it meanwhile
            folder = stack.enter_context(Folder.open(home.run_of(found.hash), home.shared))
            if done := folder.journal.row()["done"]:
                raise ArchipelError(
                    f"study {found.name}: {done} rounds are done with its scale, which stays from "
                    "the first on; submit the study anew under another name."
                )
        forget(path_of(home.path, found.hash), without)
        home.audit.append("rescaled", study=found.hash, without=", ".join(without))
    return found
