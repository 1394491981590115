# SPDX-License-Identifier: Apache-2.0
"""A coordinator's folder: its keys, where its database is, and what its operator does there.

Everything here works whether the coordinator is up or not; it sees what changed in its database.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from archipel.errors import ArchipelError
from archipel.federation import approval
from archipel.federation.audit import Audit
from archipel.federation.certificates import (
    COORDINATOR,
    VALID,
    Authority,
    Identity,
    Invitation,
    fingerprint,
    host_and_port,
    invite,
    new_key,
    pem_of,
    write_secret,
)
from archipel.store.database import to_keep
from archipel.store.files import locked
from archipel.store.folder import Folder
from archipel.store.registry import Registry, Submission

if TYPE_CHECKING:
    from archipel.engines.network.grpc import Credentials


class CoordinatorFolder:
    """A coordinator's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            about = json.loads((path / "coordinator.json").read_text())
            self.name, self.address = str(about["name"]), str(about["address"])
            self.database = str(about["database"] or f"sqlite:///{path / 'federation.db'}")
            self.authority = Authority.read(
                (path / "authority.key").read_bytes(), (path / "authority.pem").read_bytes()
            )
            self.identity = Identity.read((path / "identity.key").read_bytes())
        except FileNotFoundError:
            raise ArchipelError(
                f"home = '{path}': no coordinator there; make one with 'archipel coordinator init'."
            ) from None

    @classmethod
    def create(
        cls, path: Path, name: str, address: str, database: str | None = None
    ) -> CoordinatorFolder:
        """Make a federation: its authority, and the coordinator's keys."""
        if (path / "coordinator.json").exists():
            raise ArchipelError(f"home = '{path}': there is a coordinator already; name another.")
        host_and_port("address =", address, "as sites will reach it")
        url = database or f"sqlite:///{path / 'federation.db'}"
        authority, is_new = Authority.create(name), not path.exists()
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o700)  # also where it was there
        try:
            Registry.open(url, _key(authority), claims=False).close()
        except BaseException:
            if is_new:
                shutil.rmtree(path)
            raise
        write_secret(path / "authority.key", pem_of(authority.key))
        (path / "authority.pem").write_bytes(authority.pem)
        write_secret(path / "identity.key", Identity.create().pem)
        about = {"name": name, "address": address, "database": database and to_keep(database)}
        write_secret(path / "coordinator.json", json.dumps(about, indent=1).encode())
        home = cls(path)
        Registry.open(url, home.key).close()  # last: what failed before can be tried again
        home.audit.append("founded", name=name, fingerprint=fingerprint(authority.pem))
        return home

    @contextmanager
    def occupied(self) -> Iterator[None]:
        """While the coordinator is up; the system ends it however the process ends."""
        with locked(self.path / "up") as mine:
            if not mine:
                raise ArchipelError(
                    f"home = '{self.path}': this coordinator is up in another process; stop that "
                    "first."
                )
            yield

    @property
    def is_up(self) -> bool:
        """Whether the coordinator is up on this machine."""
        with locked(self.path / "up") as free:
            return not free

    @property
    def shared(self) -> str | None:
        """The database's address where it may hold the runs' journals, too: PostgreSQL."""
        return None if self.database.startswith("sqlite") else self.database

    def registry(self) -> Registry:
        """The federation's registry, to look or for single operations."""
        return Registry.read(self.database, self.key)

    @property
    def key(self) -> str:
        """Names the federation by its authority's public key."""
        return _key(self.authority)

    def run_of(self, study: str) -> Path:
        """The folder of a study's run."""
        return self.path / "runs" / study[:16]

    def rounds_of(self, study: str) -> int:
        """How many rounds of a study are on the disk."""
        path = self.run_of(study)
        if not Folder.exists(path):
            return 0
        return int(Folder.open(path, self.shared).row("done")["done"])

    def roster_of(self, study: str) -> Path:
        """The signed roster of a study between peers, from its first start on."""
        return self.path / "rosters" / f"{study}.json"

    @property
    def audit(self) -> Audit:
        return Audit(self.path / "audit.jsonl", self.identity)

    @property
    def evidence(self) -> Path:
        """The folder of what sites signed."""
        return self.path / "evidence"

    @property
    def anchors(self) -> Path:
        """The file with the latest anchors of sites' audit logs."""
        return self.path / "anchors.json"

    def credentials(self) -> Credentials:
        """A fresh key and certificate for the port."""
        from archipel.engines.network.grpc import Credentials

        key = new_key()
        certificate = self.authority.certify(key.public_key(), COORDINATOR, 12 * VALID)
        return Credentials(pem_of(key), certificate, self.authority.pem)

    # -- what its operator does, also while it is up ----------------------------------------------

    def invite(self, site: str, valid: timedelta = timedelta(days=7)) -> Invitation:
        """Invite a site."""
        invitation = invite(self.authority, site, self.address, valid)
        with self.registry() as registry:
            registry.invite(site, invitation.secret, invitation.expires)
        self.audit.append("invited", site=site, expires=invitation.expires.isoformat())
        return invitation

    def revoke(self, site: str, reason: str) -> None:
        """Shut a site out, from its next letter on."""
        with self.registry() as registry:
            registry.revoke(site, reason)
        self.audit.append("revoked", site=site, reason=reason)

    def submit(self, text: bytes, sites: Collection[str] = ()) -> str:
        """Ask sites for their approval of a study, these or else all; return its hash."""
        study = approval.read(text)
        approval.assure_kept(study)
        with self.registry() as registry:
            digest = registry.submit(study.name, text, sites)
            named = ", ".join(registry.named(digest))
        self.audit.append("submitted", study=digest, name=study.name, sites=named)
        return digest

    def keys(self, study: str) -> tuple[str, dict[str, set[bytes]]]:
        """The hash of a study, and the public keys with which its sites ever decided on it."""
        keys: dict[str, set[bytes]] = {}
        with self.registry() as registry:
            found = self._find(registry, study)
            for each in registry.history(found.hash):
                keys.setdefault(each.site, set()).add(each.identity)
        return found.hash, keys

    def start(self, study: str) -> Submission:
        """Have the coordinator run a study, from where it is, with those who approved it."""
        with self.registry() as registry:
            found = self._find(registry, study)
            approved = sum(d.decision == "approved" for d in registry.decisions(found.hash))
            if found.state in ("running", "done"):
                raise ArchipelError(f"study {found.name}: is {found.state} already.")
            if not approved:
                raise ArchipelError(f"study {found.name}: no site has approved it yet.")
            registry.number(found.hash)
            registry.set_state(found.hash, "running", f"started with {approved} sites")
        return found

    def stop(self, study: str) -> Submission:
        """Have the coordinator leave a study where it is; `start` goes on."""
        with self.registry() as registry:
            found = self._find(registry, study)
            if found.state not in ("open", "running"):
                raise ArchipelError(f"study {found.name}: is {found.state}, not under way.")
            registry.set_state(found.hash, "stopped", "by the operator")
        self.audit.append("stopped", study=found.hash)
        return found

    def _find(self, registry: Registry, study: str) -> Submission:
        """The study of a hash, or of its beginning; else the only one of a name."""
        studies = {each.hash: each for each in registry.studies()}
        return studies[approval.find({hash: each.name for hash, each in studies.items()}, study)]


def _key(authority: Authority) -> str:
    public = authority.key.public_key()
    return sha256(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
