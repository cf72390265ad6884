"""A throw-away certificate authority, and the TLS contexts of both sides under it."""

from __future__ import annotations

import datetime
import ssl
import tempfile
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


class Authority:
    """Signs certificates; `trusting` is a client's context that accepts those and no others."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "throw-away authority")])
        builder = self._builder(self._name, self._key.public_key(), datetime.datetime.now(datetime.UTC) + DAY)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self._certificate = builder.sign(self._key, hashes.SHA256())

    def trusting(self) -> ssl.SSLContext:
        """Return a client's context that trusts this authority alone."""
        return ssl.create_default_context(cadata=_pem(self._certificate).decode())

    def serving(self, *names: str, valid_for: datetime.timedelta = DAY) -> ssl.SSLContext:
        """Return a server's context with a certificate for these host names."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        until = datetime.datetime.now(datetime.UTC) + valid_for
        builder = self._builder(subject, key.public_key(), until)
        alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
        certificate = builder.add_extension(alternatives, critical=False).sign(self._key, hashes.SHA256())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.TemporaryDirectory() as folder:
            chain = Path(folder) / "chain.pem"
            chain.write_bytes(private + _pem(certificate))
            context.load_cert_chain(chain)
        return context

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, until: datetime.datetime
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(until - 3 * DAY)
            .not_valid_after(until)
        )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
