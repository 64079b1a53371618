"""TLS for all listeners: one certificate, read again on request, and the principals of client certificates.

A connection keeps the context that it began with. A new one gets the context of the last good reload whole,
its certificate as well as the CA of the clients, and no session of an older context is resumed in it.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from forebay.core.api.principals import Principal
from forebay.server.certificates import Grant, principal_of

logger = logging.getLogger("forebay.tls")

HANDSHAKE_S = 10.0
"""How long a client may take for its handshake."""
SHUTDOWN_S = 2.0
"""How long a connection that is closed waits for the client to close it, too, dropping what still arrives."""


class BadFile(Exception):
    """A file of a certificate or a key that can't be used: which, and why."""


class Files(Struct, frozen=True):
    """Where certificates and keys are read from, as PEM."""

    certificate: str
    key: str
    client_ca: str = ""
    """Empty: clients are asked for no certificate."""


class _Current(ssl.SSLContext):
    """What event loops take for the context of a listener; a connection gets that of the last reload."""

    make: Callable[..., ssl.SSLObject]

    def wrap_bio(self, *parts: Any, **named: Any) -> ssl.SSLObject:
        return self.make(*parts, **named)


class Tls:
    """The server's side of TLS."""

    def __init__(self, files: Files, grants: tuple[Grant, ...] = ()) -> None:
        """Read the files; raise ``BadFile`` if they don't do."""
        self._files, self._grants = files, grants
        self._context = _load(files)
        self._current = _Current(ssl.PROTOCOL_TLS_SERVER)
        self._current.make = self._wrap
        self.takes_tokens: Callable[[], bool] = bool
        """Whether there are tokens to be shown instead of a certificate."""

    @property
    def has_principals(self) -> bool:
        """Whether client certificates map to principals."""
        return bool(self._grants)

    def listening(self) -> dict[str, Any]:
        """Return the arguments of ``create_server``."""
        return {
            "ssl": self._current,
            "ssl_handshake_timeout": HANDSHAKE_S,
            "ssl_shutdown_timeout": SHUTDOWN_S,
        }

    def _wrap(self, *parts: Any, **named: Any) -> ssl.SSLObject:
        if self._files.client_ca:
            self._context.verify_mode = self._verify_mode()
        return self._context.wrap_bio(*parts, **named)

    def _verify_mode(self) -> ssl.VerifyMode:
        """Return whether clients may leave out a certificate, because they can show a token instead.

        Looked at for every connection, because tokens come and go. Without principals, a certificate says
        only that its owner may connect, and a token does not say that.
        """
        optional = self.has_principals and self.takes_tokens()
        return ssl.CERT_OPTIONAL if optional else ssl.CERT_REQUIRED

    def reload(self) -> None:
        """Reload the files, for new connections; if they can't be used, go on with the previous ones."""
        try:
            self._context = _load(self._files)
        except BadFile as error:
            logger.error("TLS goes on with the certificates of before: %s", error)
        else:
            logger.info("TLS: certificates read again, for new connections")

    def principal(self, transport: asyncio.BaseTransport) -> Principal | None:
        """Return the principal of a client's certificate; None if there is no such thing."""
        certificate = transport.get_extra_info("peercert")
        return principal_of(certificate, self._grants) if certificate else None


def _load(files: Files) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    _check(files.certificate, "BEGIN CERTIFICATE", "a certificate")
    _check(files.key, "PRIVATE KEY-----", "a private key")
    try:
        context.load_cert_chain(files.certificate, files.key, password=_refuse_password)
    except _Encrypted:
        raise BadFile(f"{files.key}: the key needs a password; take one that needs none") from None
    except (ssl.SSLError, OSError) as error:
        raise BadFile(_mismatch(files, error)) from None
    if files.client_ca:
        _load_ca(context, files.client_ca)
    return context


def _load_ca(context: ssl.SSLContext, path: str) -> None:
    text = _check(path, "BEGIN CERTIFICATE", "a certificate")
    try:
        context.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        raise BadFile(f"{path}: its certificates can't be read: {error}") from None


def _check(path: str, mark: str, what: str) -> str:
    """Return the text of a PEM file; OpenSSL itself would not say which file is missing, or not PEM."""
    try:
        text = Path(path).read_text("ascii")
    except OSError as error:
        raise BadFile(f"{path}: can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        text = ""
    if mark not in text:
        raise BadFile(f"{path}: there is no PEM of {what} in it")
    return text


class _Encrypted(Exception):
    """The key is encrypted."""


def _refuse_password() -> str:
    """Raise: OpenSSL would ask at the terminal."""
    raise _Encrypted


def _mismatch(files: Files, error: OSError) -> str:
    if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        return f"{files.key}: this is not the key of {files.certificate}"
    return f"{files.certificate}, {files.key}: can't be used: {error}"
