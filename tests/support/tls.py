"""Certificates for tests over TLS.

None of the servers' wheels is built with TLS, so a `Proxy` with `tls=certificates.server` stands before a plain server:
what a client sees is the same, and rules work, since the proxy reads what was decrypted.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Certificates:
    """A throw-away authority: the server's context, and the file a client needs to trust it."""

    server: ssl.SSLContext
    ca_file: Path


def make_certificates(folder: Path) -> Certificates:
    """Make an authority and a certificate for the loopback address."""
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    ca_file = folder / "ca.pem"
    authority.cert_pem.write_to_path(ca_file)
    return Certificates(context, ca_file)
