"""Authorities and certificates for tests of TLS, made when a test asks for them."""

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


class Authority:
    """Signs certificates. Its own is in the file ``path``."""

    def __init__(self, home: Path, name: str = "authority") -> None:
        self._home = home
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        certificate = self._signed(self._name, self._key, x509.BasicConstraints(ca=True, path_length=None))
        self.path = home / f"{name}.pem"
        self.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def make(self, name: str, *, password: bytes = b"") -> tuple[str, str]:
        """Return the files of a certificate for a host, or a client, and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        try:
            subject: x509.GeneralName = x509.IPAddress(ip_address(name))
        except ValueError:
            subject = x509.DNSName(name)
        certificate = self._signed(_name(name), key, x509.SubjectAlternativeName([subject]))
        hidden: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password:
            hidden = serialization.BestAvailableEncryption(password)
        cert, private = self._home / f"{name}.crt", self._home / f"{name}.key"
        cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        private.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden)
        )
        return str(cert), str(private)

    def served(self, name: str, *, asks: bool = False) -> ssl.SSLContext:
        """Return what a server of this name speaks TLS with; it may ask clients for certificates, too."""
        made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        made.load_cert_chain(*self.make(name))
        if asks:
            made.load_verify_locations(self.path)
            made.verify_mode = ssl.CERT_REQUIRED
        return made

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        public = self._key.public_key()
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
            .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
