"""TLS of clients: a server's certificate is always checked, and so is its name.

Authorities are the system's, or only those of a file. There is no way to do without: a connection that
anybody could answer protects no token.
"""

import ssl
from typing import TYPE_CHECKING

from forebay.client.address import not_secure, shown
from forebay.client.errors import Disconnected, NotTrusted
from forebay.core.errors import Invalid

if TYPE_CHECKING:
    from forebay.client.access import Access


def context(access: "Access") -> ssl.SSLContext:
    """Return how servers are checked, and the certificate they are shown. Raise if a file is no good."""
    try:
        made = ssl.create_default_context(cafile=access.ca)
    except (OSError, ValueError) as error:
        raise Invalid("ca", f"a PEM file of certificates; {access.ca}: {_why(error)}") from None
    if access.key and not access.cert:
        raise Invalid("cert", "given along with key: the certificate that it is the key of")
    if access.cert:
        try:
            # A key with a password would be asked for at the terminal: an empty one is refused instead.
            made.load_cert_chain(access.cert, access.key, password="")
        except (OSError, ValueError) as error:
            files = " and ".join(each for each in (access.cert, access.key) if each)
            accepted = f"a PEM file, with its private key in it or in key, without a password; {files}"
            raise Invalid("cert", f"{accepted}: {_why(error)}") from None
    return made


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def problem(server: str, error: BaseException | None) -> Disconnected | None:
    """Return the error of a client for one of TLS, if it is one that trying again does not mend."""
    if not isinstance(error, ssl.SSLError):
        return None
    place = shown(server).partition("://")[2]
    if isinstance(error, ssl.SSLCertVerificationError):
        return untrusted(server, error.verify_message or str(error))
    reason = error.reason or str(error)
    if "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER_FAILURE" in reason:
        return not_secure(server)
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        return NotTrusted(f"{place} asks clients for a certificate: name its files as cert and key")
    if "ALERT" in reason and ("CERT" in reason or "UNKNOWN_CA" in reason):
        return NotTrusted(
            f"{place} does not trust the certificate that it was shown ({reason}): give another"
        )
    return None


def untrusted(server: str, why: str) -> NotTrusted:
    """Return the error for a certificate that fails the check.

    >>> print(untrusted("tls://10.0.0.7:6780", "self-signed certificate"))
    the certificate of 10.0.0.7:6780 is not trusted (self-signed certificate): name its authority's file as ca
    """
    place = shown(server).partition("://")[2]
    if "ostname mismatch" in why or "IP address mismatch" in why:
        return NotTrusted(f"{why}: use the name that the server's certificate is for; this is {place}")
    if "expired" in why or "not yet valid" in why:
        return NotTrusted(f"the certificate of {place} can't be used now: {why}")
    return NotTrusted(f"the certificate of {place} is not trusted ({why}): name its authority's file as ca")
