# SPDX-License-Identifier: Apache-2.0
"""Who is who: the federation's certificate authority, invitations, and every party's identity.

A federation is its authority's certificate: who has the coordinator's fingerprint right talks to no
one else. An invitation is one token of text: address, authority, a certificate that opens nothing
but the joining itself, a secret that works once, and when it expires. A site makes its keys where
they are used and sends a request for a certificate; private keys travel nowhere.

TLS keys are P-256, since TLS libraries know them all; letters that must be attributed later are
signed with Ed25519.
"""

from __future__ import annotations

import base64
import os
import re
import secrets
import zlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from ipaddress import IPv6Address
from pathlib import Path
from typing import TYPE_CHECKING

import msgpack
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from archipel.errors import ArchipelError
from archipel.federation.words import WORDS
from archipel.signing import verify as verify
from archipel.store.files import sync

if TYPE_CHECKING:
    from archipel.engines.network.grpc import Credentials

COORDINATOR = "coordinator"  # the name that its certificate has
GUEST = "invited:"  # before the name of a site that has a token and no certificate yet
VALID = timedelta(days=30)
RENEW = timedelta(days=10)  # before the end
_COMMON = NameOID.COMMON_NAME
_CLOCKS = timedelta(minutes=5)  # that two clocks may differ by
_LONG = timedelta(days=3650)
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
_SCHEMES = frozenset(  # of gRPC's addresses
    ["unix", "unix-abstract", "vsock", "dns", "ipv4", "ipv6", "xds", "google-c2p", "passthrough"]
)


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def pem_of(key: ec.EllipticCurvePrivateKey | Ed25519PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")  # nobody has put one there
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    sync(path.parent)


def host_and_port(field: str, address: str, hint: str) -> tuple[str, int]:
    """Take an address apart, or say what is wrong with it.

    The host is a name or an IP address. What gRPC would take for another way to resolve it (unix:5)
    is none.

    >>> host_and_port("address =", "[::1]:8443", "as sites reach it")
    ('[::1]', 8443)
    """
    host, _, port = address.rpartition(":")
    is_port = port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65536
    if not is_port or not _is_host(host):
        raise ArchipelError(f"{field} '{address[:300]}': give host:port, {hint}.")
    return host, int(port)


def _is_host(host: str) -> bool:
    if host.startswith("[") and host.endswith("]"):
        try:
            return IPv6Address(host[1:-1]).scope_id is None
        except ValueError:
            return False
    return bool(_HOST.fullmatch(host)) and len(host) <= 253 and host.lower() not in _SCHEMES


def fingerprint(certificate: bytes) -> str:
    """Of a certificate (PEM), in words to compare by telephone.

    Hashed is what is certified, not the text around it.
    """
    return in_words(x509.load_pem_x509_certificate(certificate).fingerprint(hashes.SHA256()))


def in_words(digest: bytes) -> str:
    """The first 96 bits of a hash, as 12 of 256 words.

    >>> len(in_words(sha256(b"any bytes").digest()).split())
    12
    """
    return " ".join(WORDS[byte] for byte in digest[:12])


# -- certificates ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Authority:
    """The key that signs a federation's certificates, at the coordinator."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def create(cls, name: str) -> Authority:
        key = new_key()
        subject = _name(name)
        builder = _builder(subject, subject, key.public_key(), _LONG)
        builder = builder.add_extension(x509.BasicConstraints(True, 0), critical=True)
        builder = builder.add_extension(_usage(signs=True), critical=True)
        return cls(key, builder.sign(key, hashes.SHA256()))

    @classmethod
    def read(cls, key: bytes, certificate: bytes) -> Authority:
        private = load_pem_private_key(key, None)
        assert isinstance(private, ec.EllipticCurvePrivateKey)
        return cls(private, x509.load_pem_x509_certificate(certificate))

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def name(self) -> str:
        return _common_name(self.certificate.subject)

    def issue(self, request: bytes, name: str, valid: timedelta = VALID) -> bytes:
        """A certificate for the key of a request (PEM), in a name that the authority chooses."""
        try:
            asked = x509.load_pem_x509_csr(request)
            key = asked.public_key()
        except (ValueError, UnsupportedAlgorithm):
            raise ArchipelError("request: not a certificate request in PEM.") from None
        is_ours = isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == "secp256r1"
        if not is_ours or not _signed_by_itself(asked):
            raise ArchipelError("request: not signed by a P-256 key of its own.")
        assert isinstance(key, ec.EllipticCurvePublicKey)
        return self.certify(key, name, valid)

    def certify(self, key: ec.EllipticCurvePublicKey, name: str, valid: timedelta = VALID) -> bytes:
        """The coordinator listens; sites ask."""
        builder = _builder(_name(name), self.certificate.subject, key, valid)
        builder = builder.add_extension(x509.BasicConstraints(False, None), critical=True)
        builder = builder.add_extension(_usage(signs=False), critical=True)
        use = ExtendedKeyUsageOID.CLIENT_AUTH
        if name == COORDINATOR:
            use = ExtendedKeyUsageOID.SERVER_AUTH
            builder = builder.add_extension(_listener(name), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=True)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM)


def request(key: ec.EllipticCurvePrivateKey, name: str) -> bytes:
    """Ask for a certificate for one's own key."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(_name(name))
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def of_ones_own(key: ec.EllipticCurvePrivateKey, name: str) -> bytes:
    """A certificate (PEM) that a peer makes for its port, and that nobody else stands for.

    Others trust it because it is in an approval that the peer signed, so it lasts as long as an
    authority. Its subject has a number: peers may know an older one of the same name.
    """
    subject = x509.Name(
        [*_name(name), x509.NameAttribute(NameOID.SERIAL_NUMBER, secrets.token_hex(8))]
    )
    builder = _builder(subject, subject, key.public_key(), _LONG)
    builder = builder.add_extension(x509.BasicConstraints(False, None), critical=True)
    builder = builder.add_extension(_usage(signs=False), critical=True)
    builder = builder.add_extension(_listener(name), critical=False)
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=True)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def is_of_ones_own(certificate: str, name: str) -> bool:
    """Whether this is one certificate in PEM and nothing else, signed by itself, in this name."""
    try:
        found = x509.load_pem_x509_certificate(certificate.encode())
        found.verify_directly_issued_by(found)
        names = [str(each.value) for each in found.subject.get_attributes_for_oid(_COMMON)]
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return names == [name] and found.public_bytes(Encoding.PEM).decode() == certificate


def _listener(name: str) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([x509.DNSName(name)])


def _signed_by_itself(asked: x509.CertificateSigningRequest) -> bool:
    try:
        return asked.is_signature_valid
    except (ValueError, UnsupportedAlgorithm):
        return False


def serial(certificate: bytes) -> str:
    return f"{x509.load_pem_x509_certificate(certificate).serial_number:x}"


def ends(certificate: bytes) -> datetime:
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(_COMMON, name)])


def _common_name(name: x509.Name) -> str:
    return str(name.get_attributes_for_oid(_COMMON)[0].value)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, valid: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS)
        .not_valid_after(now + valid)
    )


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


# -- invitations -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Invitation:
    """All that a site needs to join."""

    federation: str
    site: str
    address: str
    authority: bytes  # certificate, PEM
    key: bytes = field(repr=False)  # of the guest: opens the joining and nothing else
    certificate: bytes
    secret: bytes = field(repr=False)
    expires: datetime

    @property
    def credentials(self) -> Credentials:
        from archipel.engines.network.grpc import Credentials  # only who talks waits for it

        return Credentials(self.key, self.certificate, self.authority)

    def token(self) -> str:
        """As one word of text."""
        packed = msgpack.packb([
            self.federation, self.site, self.address, self.authority, self.key, self.certificate,
            self.secret, int(self.expires.timestamp()),
        ])  # fmt: skip
        body = zlib.compress(packed, 9)
        return "archipel-" + base64.urlsafe_b64encode(body + sha256(body).digest()[:4]).decode()

    @classmethod
    def read(cls, token: str) -> Invitation:
        word = "".join(token.split())  # mail programs break lines
        try:
            if not word.startswith("archipel-"):
                raise ValueError
            raw = base64.b64decode(word.removeprefix("archipel-"), b"-_", validate=True)
            body, check = raw[:-4], raw[-4:]
            if sha256(body).digest()[:4] != check:
                raise ValueError
            inflate = zlib.decompressobj()
            unpacked = msgpack.unpackb(inflate.decompress(body, 16 << 10), max_ext_len=0)
            *texts, authority, key, certificate, secret, until = unpacked
            federation, site, address = texts
            if not all(isinstance(text, str) and text.isprintable() for text in texts):
                raise ValueError
            if not all(isinstance(each, bytes) for each in (key, certificate, secret)):
                raise ValueError
            expires = datetime.fromtimestamp(int(until), UTC)
            certified = x509.load_pem_x509_certificate(authority)
            authority = certified.public_bytes(Encoding.PEM)  # this one alone is compared, and used
        except (ValueError, TypeError, OverflowError, OSError, zlib.error, msgpack.UnpackException):
            raise ArchipelError(
                "the token is not whole: copy all of it, from archipel- to its end."
            ) from None
        return cls(federation, site, address, authority, key, certificate, secret, expires)


def invite(authority: Authority, site: str, address: str, valid: timedelta) -> Invitation:
    """An invitation for one site."""
    key = new_key()
    return Invitation(
        authority.name,
        site,
        address,
        authority.pem,
        pem_of(key),
        authority.certify(key.public_key(), GUEST + site, valid),
        secrets.token_bytes(16),
        datetime.now(UTC) + valid,
    )


# -- signatures ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Identity:
    """A party's key for letters that must be attributed to it."""

    key: Ed25519PrivateKey

    @classmethod
    def create(cls) -> Identity:
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def read(cls, pem: bytes) -> Identity:
        key = load_pem_private_key(pem, None)
        assert isinstance(key, Ed25519PrivateKey)
        return cls(key)

    @property
    def pem(self) -> bytes:
        return pem_of(self.key)

    @property
    def public(self) -> bytes:
        return self.key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    def sign(self, what: bytes) -> bytes:
        return self.key.sign(what)
