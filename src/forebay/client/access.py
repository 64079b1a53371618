"""Access to a server: the token a client shows, the tenant it acts for, and the certificates it trusts.

What is not given comes from the environment, each by itself. An empty text means none, whatever the
environment says. The token stays out of everything that is shown.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import asdict

from forebay.client.address import TLS_SCHEMES, is_tls, shown
from forebay.client.errors import Disconnected
from forebay.core.bounds import check_name
from forebay.core.errors import Invalid
from forebay.wire.operations.tenants import Auth

if TYPE_CHECKING:
    from ssl import SSLContext

VARIABLES = {name: f"FOREBAY_{name.upper()}" for name in ("token", "tenant", "ca", "cert", "key")}
"""Where each value is found in the environment."""
OF_TLS = ("ca", "cert", "key")


class Access(Struct, frozen=True):
    """How a client gets in; None means that it is not said."""

    token: str | None = None
    tenant: str | None = None
    """The tenant that an admin acts for; everybody else acts for the one of their token."""
    ca: str | None = None
    """A PEM file of the only authorities to trust, instead of the system's."""
    cert: str | None = None
    """A PEM file of the client's own certificate, for servers that ask for one."""
    key: str | None = None
    """A PEM file of its private key, if that is not in ``cert``."""

    def __repr__(self) -> str:
        """Return what it is without the token.

        >>> Access("fb_0123", "acme")
        Access(token='…', tenant='acme', ca=None, cert=None, key=None)
        """
        fields = {**asdict(self), "token": "…" if self.token else self.token}
        return f"Access({', '.join(f'{name}={value!r}' for name, value in fields.items())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return the same for rich, which would be given all fields otherwise."""
        return list((asdict(self) | {"token": "…" if self.token else self.token}).items())

    def over(self, other: "Access") -> "Access":
        """Return the values of this one, and those of another where this one has none.

        >>> Access(tenant="acme").over(Access(tenant="other", ca="ca.pem"))
        Access(token=None, tenant='acme', ca='ca.pem', cert=None, key=None)
        """
        mine = {name: value for name, value in asdict(self).items() if value is not None}
        return Access(**{**asdict(other), **mine})

    def resolved(self, environment: Mapping[str, str] = os.environ) -> "Access":
        """Return it with what the environment says of the rest, and empty texts as None."""
        whole = self.over(of_environment(environment))
        return Access(**{name: value or None for name, value in asdict(whole).items()})

    def check(self) -> None:
        """Raise unless this can be shown to a server."""
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            raise Invalid("token", "printable ASCII")
        if self.tenant:
            check_name("tenant", self.tenant)

    def check_tls(self, server: str) -> None:
        """Raise if it names certificates for an address without TLS: nothing would be protected."""
        for name in OF_TLS:
            if getattr(self, name) and not is_tls(server):
                raise Invalid(name, f"left out, or the server {TLS_SCHEMES}: {shown(server)} is without TLS")

    def tls(self, server: str) -> "SSLContext | None":
        """Return how to check a server's certificate; None if its address is one without TLS."""
        if not is_tls(server):
            return None
        from forebay.client.tls import context

        return context(self)

    def greeting(self) -> bytes:
        """Return the request that shows the token, which begins every connection; empty without one."""
        if not self.token:
            return b""
        from forebay.client.translate import body_of

        return body_of(Auth(token=self.token))


NO_ACCESS = Access(token="", tenant="", ca="", cert="", key="")
"""Shows nothing, whatever the environment says."""


def of_environment(environment: Mapping[str, str] = os.environ) -> Access:
    """Return what the environment says.

    >>> of_environment({"FOREBAY_TENANT": "acme", "FOREBAY_CA": ""})
    Access(token=None, tenant='acme', ca=None, cert=None, key=None)
    """
    return Access(**{name: environment.get(variable) or None for name, variable in VARIABLES.items()})


def access_of(server: str, given: Access) -> Access:
    """Return how to get into a server: as given, and as the environment says."""
    given.check_tls(server)  # not the environment, which may be meant for another server
    whole = given.resolved()
    whole.check()
    return whole


def tls_problem(server: str, error: BaseException | None) -> Disconnected | None:
    """Return the error of a client for one of TLS, if it is one that trying again does not mend."""
    if error is None or not is_tls(server):
        return None
    from forebay.client.tls import problem

    return problem(server, error)
