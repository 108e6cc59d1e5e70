"""OpenID Connect discovery documents, served by the identity provider of the tests."""

import orjson

from tests.support.identity_provider import IdentityProvider, Response


def publish_discovery(idp: IdentityProvider, base: str, issuer: str, path: str = "") -> None:
    """Serve a discovery document under `path` that names `issuer`; the endpoints stay at `base`."""
    document = idp._discovery() | {
        "issuer": issuer,
        "authorization_endpoint": f"{base}/authorize",
        "token_endpoint": f"{base}/token",
        "userinfo_endpoint": f"{base}/userinfo",
        "jwks_uri": f"{base}/jwks",
    }
    address = f"{path}/.well-known/openid-configuration"
    idp.twist_answer[address] = lambda: Response(200, orjson.dumps(document), [("Content-Type", "application/json")])
