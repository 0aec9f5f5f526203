"""An authority, a server certificate for loopback and a client certificate, generated for each test."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Certificates:
    ca: str
    cert: str
    key: str
    client_cert: str
    client_key: str


def make(folder: Path) -> Certificates:
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca = _sign("test authority", ca_key.public_key(), "test authority", ca_key, authority=True)
    paths = {"ca": _save(folder / "ca.pem", ca.public_bytes(serialization.Encoding.PEM))}
    for name in ("server", "client"):
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _sign(name, key.public_key(), "test authority", ca_key, authority=False)
        paths[name] = _save(folder / f"{name}.pem", certificate.public_bytes(serialization.Encoding.PEM))
        paths[f"{name}-key"] = _save(folder / f"{name}-key.pem", _key_bytes(key))
    return Certificates(
        paths["ca"], paths["server"], paths["server-key"], paths["client"], paths["client-key"]
    )


def _sign(
    name: str,
    public: ec.EllipticCurvePublicKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    authority: bool,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
        )
        .add_extension(make_key_usage(authority=authority), critical=True)
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            ),
            critical=False,
        )
    )
    return builder.sign(issuer_key, hashes.SHA256())


def make_key_usage(*, authority: bool) -> x509.KeyUsage:
    """Return what a key is for. From Python 3.13 on, clients reject an authority that does not say it."""
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _save(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)
