"""The server that the proxy stands before: its address, and connections to it."""

import asyncio
import ssl
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from workloads.session import WorkloadError

CONNECT_TIMEOUT_S = 10.0
READ_LIMIT_BYTES = 1 << 18
VERSION = "/v1"


@dataclass(frozen=True, slots=True)
class Upstream:
    url: str
    host: str
    port: int
    prefix: str
    """What comes before the path that a client asks for."""
    tls: ssl.SSLContext | None
    version: str
    """What a client appends to the proxy's address to get a base URL."""

    @classmethod
    def parse(cls, url: str) -> Self:
        """Take apart ``http://host:port``, or a base URL as clients are given, with ``/v1`` or another path.

        Raises:
            WorkloadError: no such URL.
        """
        example = "give one like http://127.0.0.1:8080"
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise WorkloadError(f"upstream={url}: {error}; {example}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise WorkloadError(f"upstream={url} is no http:// or https:// URL; {example}")
        if parts.username is not None or parts.query or parts.fragment:
            raise WorkloadError("upstream= holds a key or a query; leave it to the client, the proxy passes it on")
        path = parts.path.rstrip("/")
        versioned = not path or path.endswith(VERSION)
        tls = None
        if parts.scheme == "https":
            tls = ssl.create_default_context()
            tls.set_alpn_protocols(["http/1.1"])
        return cls(
            url,
            parts.hostname,
            port or (443 if tls else 80),
            path.removesuffix(VERSION) if versioned else path,
            tls,
            VERSION if versioned else "",
        )

    @property
    def host_header(self) -> bytes:
        name = f"[{self.host}]".encode() if ":" in self.host else self.host.encode("idna")
        return name if self.port == (443 if self.tls else 80) else b"%b:%d" % (name, self.port)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection.

        Raises:
            WorkloadError: nothing answers there, or its certificate isn't trusted.
        """
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await asyncio.open_connection(self.host, self.port, ssl=self.tls, limit=READ_LIMIT_BYTES)
        except ssl.SSLCertVerificationError as error:
            raise WorkloadError(
                f"{self.url}: its certificate is not trusted ({error.verify_message});"
                " name its authority's file in SSL_CERT_FILE"
            ) from error
        except ssl.SSLError as error:
            raise WorkloadError(f"{self.url}: no TLS there ({error.reason}); try http://") from error
        except TimeoutError as error:
            raise WorkloadError(f"{self.url}: no answer within {CONNECT_TIMEOUT_S:.0f} s; check the URL") from error
        except OSError as error:
            raise WorkloadError(f"nothing answers at {self.url}; start the server or correct upstream=") from error
