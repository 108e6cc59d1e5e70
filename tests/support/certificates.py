"""A certificate authority, and an outbound client that trusts it."""

import datetime as dt
import ipaddress
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from platform_site import outbound
from platform_site.outbound.ssrf import Address, networks

LOOPBACK = networks(("127.0.0.0/8", "::1/128"))
_SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
    key_agreement=False, key_cert_sign=True, crl_sign=False, encipher_only=False, decipher_only=False,
)  # fmt: skip


def resolving(*answers: list[str]) -> Callable[[str, int, float, str], list[Address]]:
    """A name server that gives one answer after the other, and the last one from then on."""
    waiting = list(answers)

    def resolve(host: str, port: int, deadline: float, owner: str) -> list[Address]:
        texts = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        return [ipaddress.ip_address(text) for text in texts]

    return resolve


class Authority:
    """A certificate authority of a test's own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._sign("test authority", self.key.public_key(), None, self.key)

    def _sign(self, name: str, public: Any, names: list[x509.GeneralName] | None, by: Any, days: int = 1) -> Any:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test authority")]))
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=2))
            .not_valid_after(now + dt.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=names is None, path_length=None), critical=True)
            # RFC 5280, to which Python holds certificates from 3.13 on, wants the keys named and a use for the CA's.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        if names is not None:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        else:
            builder = builder.add_extension(_SIGNS_CERTIFICATES, critical=True)
        return builder.sign(by, hashes.SHA256())

    def server(self, *names: str, days: int = 1) -> ssl.SSLContext:
        """What a server needs that is known by these names."""
        key = ec.generate_private_key(ec.SECP256R1())
        general: list[x509.GeneralName] = []
        for name in names:
            try:
                general.append(x509.IPAddress(ipaddress.ip_address(name)))
            except ValueError:
                general.append(x509.DNSName(name))
        certificate = self._sign(names[0], key.public_key(), general, self.key, days)
        file = self.directory / f"{time.monotonic_ns()}.pem"
        file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context

    def client(self, *answers: list[str]) -> outbound.Client:
        """A client that trusts this authority, and whose name server answers so."""
        trust = ssl.create_default_context(cadata=self.certificate.public_bytes(serialization.Encoding.PEM).decode())
        return outbound.Client(opened=LOOPBACK, resolve=resolving(*(answers or (["127.0.0.1"],))), tls=trust)
