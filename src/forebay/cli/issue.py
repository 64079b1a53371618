"""Makes a CA, and certificates of it. The only file that imports ``cryptography`` to do so.

Meant for machines of one team: a CA that signs everything itself, keys without a password in files that only
their owner reads.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

SKEW = timedelta(minutes=5)
"""How long before now certificates are good: clocks differ."""
COMMON_NAME_MAX = 64
"""Characters of a common name, by X.509. Nobody reads it any more; the alternative names count."""


class Pair(Struct, frozen=True):
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes

    @property
    def good_until(self) -> datetime:
        return x509.load_pem_x509_certificate(self.certificate).not_valid_after_utc

    def fits(self) -> bool:
        """Return whether the key is that of the certificate, of the kind made here, without a password."""
        try:
            key = load_pem_private_key(self.key, None)
        except TypeError:
            return False
        mine = x509.load_pem_x509_certificate(self.certificate).public_key()
        return isinstance(key, ec.EllipticCurvePrivateKey) and key.public_key() == mine


def make_ca(now: datetime, days: int, name: str = "Forebay development CA") -> Pair:
    """Make a CA that signs certificates of servers and clients, and no other CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(name)
    made = (
        _begun(subject, subject, key.public_key(), now - SKEW, now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return _signed(made, key, key)


def make_server(ca: Pair, hosts: Sequence[str], now: datetime, days: int) -> Pair:
    """Make the certificate of a server that clients reach by these names and addresses."""
    names = [_host(each) for each in hosts]
    return _leaf(ca, hosts[0], names, ExtendedKeyUsageOID.SERVER_AUTH, now, days)


def make_client(ca: Pair, name: str, now: datetime, days: int) -> Pair:
    """Make the certificate of a client: a URI, an email address, or else a DNS name."""
    return _leaf(ca, name, [client_name(name)], ExtendedKeyUsageOID.CLIENT_AUTH, now, days)


def client_name(name: str) -> x509.GeneralName:
    """Return the alternative name that a client's name is; raise ``ValueError`` if it can't be one."""
    if "://" in name:
        return x509.UniformResourceIdentifier(name)
    return x509.RFC822Name(name) if "@" in name else x509.DNSName(name)


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _leaf(
    ca: Pair,
    name: str,
    names: Sequence[x509.GeneralName],
    purpose: x509.ObjectIdentifier,
    now: datetime,
    days: int,
) -> Pair:
    issuer = x509.load_pem_x509_certificate(ca.certificate)
    signer = load_pem_private_key(ca.key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    until = min(now + timedelta(days=days), issuer.not_valid_after_utc)
    begin = min(now - SKEW, until - SKEW)
    made = (
        _begun(_subject(name), issuer.subject, key.public_key(), begin, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
    )
    return _signed(made, signer, key)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:COMMON_NAME_MAX])])


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, begin: datetime, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _signed(
    made: x509.CertificateBuilder, signer: ec.EllipticCurvePrivateKey, key: ec.EllipticCurvePrivateKey
) -> Pair:
    of_issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    certificate = made.add_extension(of_issuer, critical=False).sign(signer, hashes.SHA256())
    return Pair(
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )
