"""URLs of webhooks: compared as the service stores them (`platform_site.outbound.urls`), shown without credentials."""

import ipaddress
import re
from typing import Final
from urllib.parse import quote, urlsplit

REFERENCE: Final = "$secret:"
"""What the service writes in place of a credential in a URL."""
_MAY_BE_CREDENTIAL: Final = re.compile(r"[?@]|[^/]/[^/]{16,}")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def normal_url(url: str) -> str:
    """A URL that the service refuses may stay as it is."""
    try:
        parts = urlsplit(url.strip())
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or "@" in parts.netloc or "#" in url:
            return url
        host, port = _host(parts.hostname), parts.port
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        path = path if path.isascii() else quote(path, safe="!#$%&'()*+,/:;=?@[]~-._")
    except ValueError:
        return url
    return f"{parts.scheme}://{host}" + ("" if port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{port}") + path


def _host(host: str) -> str:
    if ":" in host:
        return f"[{ipaddress.IPv6Address(host)}]"
    if not host.isascii():
        import idna  # a dependency of httpx

        host = idna.encode(host, uts46=True).decode()
    return host.removesuffix(".")


def host_alone(url: str) -> str:
    """With a reference in place of the rest; the URL itself if it has no host."""
    try:
        scheme, host = urlsplit(url)[:2]
    except ValueError:
        return url
    return f"{scheme}://{host.rpartition('@')[2]}/{REFERENCE}url" if scheme and host else url


def shown_url(url: str) -> str:
    """Without what may be a credential."""
    return host_alone(url) if _MAY_BE_CREDENTIAL.search(url) else url


def is_local(url: str) -> bool:
    """Whether it is on this machine or a private network."""
    try:
        host = urlsplit(normal_url(url)).hostname or ""
        return host == "localhost" or host.endswith(".localhost") or not ipaddress.ip_address(host).is_global
    except ValueError:
        return False
