"""A certificate authority that issues certificates for any names."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from support.certificates import make_key_usage

_OIDS = {
    "CN": NameOID.COMMON_NAME,
    "O": NameOID.ORGANIZATION_NAME,
    "OU": NameOID.ORGANIZATIONAL_UNIT_NAME,
    "C": NameOID.COUNTRY_NAME,
    "DC": NameOID.DOMAIN_COMPONENT,
}


class Authority:
    """Issues certificates into a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        self.ca = self._save("ca.pem", self._sign(self._name, self._key.public_key(), [], authority=True))
        loopback = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        self.cert, self.key = self.issue("server", [("CN", "server")], loopback)

    def issue(
        self, file: str, subject: list[tuple[str, str]], names: list[x509.GeneralName] | None = None
    ) -> tuple[str, str]:
        """Issue a certificate and its key, for a subject (outermost part first) and alternative names."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(_OIDS[part], value) for part, value in subject])
        certificate = self._sign(name, key.public_key(), names or [], authority=False)
        form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        data = key.private_bytes(serialization.Encoding.PEM, form, plain)
        path = self._folder / f"{file}.key"
        path.write_bytes(data)
        return self._save(f"{file}.pem", certificate), str(path)

    def _sign(
        self,
        subject: x509.Name,
        public: ec.EllipticCurvePublicKey,
        names: list[x509.GeneralName],
        *,
        authority: bool,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(make_key_usage(authority=authority), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def _save(self, file: str, certificate: x509.Certificate) -> str:
        path = self._folder / file
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return str(path)

    def context(self, certificate: tuple[str, str] | None = None) -> ssl.SSLContext:
        """Return a client's SSL context that trusts the authority and, optionally, presents a certificate."""
        context = ssl.create_default_context(cafile=self.ca)
        if certificate is not None:
            context.load_cert_chain(*certificate)
        return context
