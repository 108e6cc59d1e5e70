"""Access tokens: what they say, who can verify them, and everything that is not one. Contract 5.2, 5.3, 5.6; T14."""

import base64
import hashlib
import hmac
import json
import time
from functools import cache
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from django.db.models import Value
from django.db.models.functions import Now
from joserfc import jwk as jose_jwk
from joserfc import jwt as jose_jwt

from accounts import audit
from accounts.models import Session, SigningKey, User
from accounts.tokens import access_tokens, credentials, signing_keys
from accounts.users import identity_lookup
from platform_site.http.errors import Unauthorized
from projects.models import Environment
from tests.accounts.conftest import SignedIn, session_of
from tests.support.client import Api

pytestmark = pytest.mark.django_db(databases="__all__")


@pytest.fixture
def signed_in(alice: User) -> SignedIn:
    return session_of(alice)


@pytest.fixture
def una_signed_in(una: User) -> SignedIn:
    return session_of(una)


def test_a_jose_library_verifies_a_token_with_the_public_keys(api: Api, signed_in: SignedIn) -> None:
    answer = api.get("/.well-known/jwks.json")
    assert answer.status == 200
    assert answer.headers["Cache-Control"] == "public, max-age=300"
    keys = jose_jwk.KeySet.import_key_set(answer.json)
    decoded = jose_jwt.decode(signed_in.access_token, keys, algorithms=["ES256"])
    session = Session.objects.get()
    assert decoded.header == {"alg": "ES256", "kid": answer.json["keys"][0]["kid"], "typ": "JWT"}
    assert set(decoded.claims) == {"typ", "sub", "sid", "env", "iat", "nbf", "exp", "iss", "aud", "jti"}
    assert decoded.claims["sub"] == signed_in.user.pk
    assert decoded.claims["sid"] == session.pk
    assert decoded.claims["env"] is None
    assert decoded.claims["typ"] == "access"
    assert decoded.claims["exp"] - decoded.claims["iat"] == 900
    assert abs(decoded.claims["iat"] - time.time()) < 5
    assert keys.keys[0].thumbprint() == decoded.header["kid"]


def test_a_token_of_an_application_names_its_environment(una_signed_in: SignedIn, production: Environment) -> None:
    claims = jwt.decode(una_signed_in.access_token, options={"verify_signature": False})
    assert claims["env"] == production.pk


def test_the_public_keys_hold_nothing_private(api: Api, signed_in: SignedIn) -> None:
    for key in api.get("/.well-known/jwks.json").json["keys"]:
        assert set(key) == {"kty", "crv", "x", "y", "kid", "use", "alg"}
    sealed = bytes(SigningKey.objects.get().sealed_private)
    _, private = signing_keys.current_signing_key()
    der = private.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    number = private.private_numbers().private_value.to_bytes(32, "big")
    assert der not in sealed
    assert number not in sealed


# ── Texts that are not valid tokens ──


def encoded(part: Any) -> str:
    data = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def forge(token: str, *, header: Any = None, claims: Any = None, key: Any = None, algorithm: str = "ES256") -> str:
    """`token` with parts of header and claims replaced (`...` drops one), signed by `key`, the real one by default."""
    real_header = jwt.get_unverified_header(token)
    real_claims = jwt.decode(token, options={"verify_signature": False})
    new_header = {k: v for k, v in (real_header | (header or {})).items() if v is not ...}
    new_claims = {k: v for k, v in (real_claims | (claims or {})).items() if v is not ...}
    signing_input = f"{encoded(new_header)}.{encoded(new_claims)}"
    signature = jwt.algorithms.get_default_algorithms()[algorithm].sign(
        signing_input.encode(), key or signing_keys.current_signing_key()[1]
    )
    return f"{signing_input}.{encoded(signature)}"


@cache
def rsa_key() -> rsa.RSAPrivateKey:
    """Making one takes a tenth of a second."""
    return rsa.generate_private_key(65537, 2048)


def hostile(token: str) -> dict[str, str]:
    header, payload, signature = token.split(".")
    strangers_key = ec.generate_private_key(ec.SECP256R1())
    public = signing_keys.current_signing_key()[1].public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    point = public.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)

    def hs256(secret: bytes, **more: Any) -> str:
        made = f"{encoded(jwt.get_unverified_header(token) | {'alg': 'HS256'} | more)}.{payload}"
        return f"{made}.{encoded(hmac.new(secret, made.encode(), hashlib.sha256).digest())}"

    jwk = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(strangers_key.public_key()))
    now = int(time.time())
    return {
        "empty": "",
        "dots": "..",
        "two parts": f"{header}.{payload}",
        "four parts": f"{token}.x",
        "no signature": f"{header}.{payload}.",
        "alg none": f"{encoded({'alg': 'none', 'kid': jwt.get_unverified_header(token)['kid']})}.{payload}.",
        "alg None": f"{encoded({'alg': 'None', 'kid': jwt.get_unverified_header(token)['kid']})}.{payload}.",
        "alg missing": forge(token, header={"alg": ...}),
        "alg a list": forge(token, header={"alg": ["ES256"]}),
        "hs256 with the public pem": hs256(pem),
        "hs256 with the public point": hs256(point),
        "hs256 with nothing": hs256(b""),
        "es256 by a stranger": forge(token, key=strangers_key),
        "rs256": forge(token, header={"alg": "RS256"}, key=rsa_key(), algorithm="RS256"),
        "es384": forge(token, header={"alg": "ES384"}, key=ec.generate_private_key(ec.SECP384R1()), algorithm="ES384"),
        "kid missing": forge(token, header={"kid": ...}),
        "kid unknown": forge(token, header={"kid": "A" * 43}),
        "kid a path": forge(token, header={"kid": "../../../../dev/null"}),
        "kid a statement": forge(token, header={"kid": "' UNION SELECT 'x"}),
        "kid a number": forge(token, header={"kid": 5}),
        "kid null": forge(token, header={"kid": None}),
        "jwk in the header": forge(token, header={"jwk": jwk, "kid": ...}, key=strangers_key),
        "jwk beside the kid": forge(token, header={"jwk": jwk}, key=strangers_key),
        "jku": forge(token, header={"jku": "https://example.com/jwks.json"}, key=strangers_key),
        "x5u": forge(token, header={"x5u": "https://example.com/x.pem"}, key=strangers_key),
        "crit": forge(token, header={"crit": ["exp"], "exp": 1}),
        "b64 false": forge(token, header={"b64": False, "crit": ["b64"]}),
        "claims of another": f"{header}.{encoded(jwt.decode(token, options={'verify_signature': False}) | {'sub': 'usr_x'})}.{signature}",
        "signature flipped": f"{header}.{payload}.{signature[:10]}{'A' if signature[10] != 'A' else 'B'}{signature[11:]}",
        "signature zero": f"{header}.{payload}.{encoded(bytes(64))}",
        "expired": forge(token, claims={"exp": now - 11}),
        "not yet": forge(token, claims={"nbf": now + 60}),
        "made in the future": forge(token, claims={"iat": now + 60}),
        "exp a text": forge(token, claims={"exp": "never"}),
        "exp endless": forge(token, claims={"exp": 1e308}),
        "exp null": forge(token, claims={"exp": None}),
        "exp a list": forge(token, claims={"exp": [now + 900]}),
        "wrong issuer": forge(token, claims={"iss": "https://example.com"}),
        "issuer a list": forge(token, claims={"iss": [jwt.decode(token, options={"verify_signature": False})["iss"]]}),
        "wrong audience": forge(token, claims={"aud": "https://example.com"}),
        "many audiences": forge(
            token, claims={"aud": ["x", jwt.decode(token, options={"verify_signature": False})["aud"]]}
        ),
        "a refresh token's type": forge(token, claims={"typ": "refresh"}),
        "type a list": forge(token, claims={"typ": ["access"]}),
        "sub of another kind": forge(token, claims={"sub": "key_01k60000000000000000000000"}),
        "sub a number": forge(token, claims={"sub": 5}),
        "sid of another kind": forge(token, claims={"sid": "usr_01k60000000000000000000000"}),
        "sid unknown": forge(token, claims={"sid": "ses_01k60000000000000000000000"}),
        "env of another kind": forge(token, claims={"env": "prj_01k60000000000000000000000"}),
        "env of nobody": forge(token, claims={"env": "env_01k60000000000000000000000"}),
        "env an empty text": forge(token, claims={"env": ""}),
        "claims a list": f"{header}.{encoded([])}.{signature}",
        "not base64": f"{header}.%%%.{signature}",
        "not json": f"{encoded(b'xx')}.{encoded(b'xx')}.{signature}",
        "deep": f"{encoded(b'[' * 1000)}.{payload}.{signature}",
        "long": token + "a" * 5000,
        "signed, but long": forge(token, claims={"more": "a" * 2048}),
        **{
            f"without {claim}": forge(token, claims={claim: ...})
            for claim in ("typ", "sub", "sid", "env", "iat", "nbf", "exp", "iss", "aud", "jti")
        },
        "a key that is none": "sk_" + "a" * 38,
        "a refresh token": "rt_" + "a" * 71,
    }


ADDRESSES = [
    ("GET", "/v1/auth/me"),
    ("PATCH", "/v1/auth/me"),
    ("GET", "/v1/auth/sessions"),
    ("DELETE", "/v1/auth/sessions/ses_01k60000000000000000000000"),
    ("POST", "/v1/auth/revoke"),
    ("GET", "/v1/keys"),
    ("POST", "/v1/keys"),
    ("DELETE", "/v1/keys/key_01k60000000000000000000000"),
    ("GET", "/v1/users"),
    ("POST", "/v1/users"),
    ("GET", "/v1/users/usr_01k60000000000000000000000"),
    ("PATCH", "/v1/users/usr_01k60000000000000000000000"),
    ("DELETE", "/v1/users/usr_01k60000000000000000000000"),
]


def test_invalid_tokens_are_401(api: Api, signed_in: SignedIn) -> None:
    tokens = hostile(signed_in.access_token)
    answers = {kind: api.get("/v1/auth/me", token=token) for kind, token in tokens.items()}
    assert {kind: (each.status, each.error) for kind, each in answers.items()} == dict.fromkeys(
        tokens, (401, "unauthorized")
    )
    assert api.get("/v1/auth/me", token=signed_in.access_token).status == 200


@pytest.mark.parametrize(
    "kind", ["alg none", "hs256 with the public pem", "expired", "es256 by a stranger", "without env"]
)
def test_no_address_accepts_it(api: Api, signed_in: SignedIn, kind: str) -> None:
    token = hostile(signed_in.access_token)[kind]
    for method, path in ADDRESSES:
        assert api.request(method, path, token=token, json={}).status == 401, path


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Basic YWxpY2U6c2VjcmV0",
        "Digest x",
        "Token {}",
        "{}",
        "Bearer {} {}",
        "Bearer {}, Bearer {}",
        "Bearer {},{}",
        "Bearer Bearer {}",
        "Bearer\u00a0{}",
        'Bearer "{}"',
        "Bearer é",
    ],
)
def test_another_authorization_header_is_401(api: Api, signed_in: SignedIn, header: str | None) -> None:
    sent = {} if header is None else {"Authorization": header.replace("{}", signed_in.access_token)}
    for path in ("/v1/auth/me", "/v1/keys", "/v1/users", "/v1/auth/sessions"):
        assert api.get(path, headers=sent).status == 401


@pytest.mark.parametrize(
    ("header", "hint"),
    [
        (None, "Authorization is missing"),
        ("{}", "Authorization cannot be read"),
        ("Basic YWxpY2U6c2VjcmV0", "Authorization cannot be read"),
        ("Bearer sk_12345678901234567890123456789012345678", "mistyped"),
        ("Bearer rt_12345678901234567890123456789012345678", "refresh token"),
        ("Bearer null", "was not issued by this platform"),
    ],
)
def test_a_401_says_what_is_wrong_with_the_form(api: Api, signed_in: SignedIn, header: str | None, hint: str) -> None:
    sent = {} if header is None else {"Authorization": header.replace("{}", signed_in.access_token)}
    assert hint in api.get("/v1/auth/me", headers=sent).json["error"]["message"]


def test_a_401_says_no_more_of_a_token_than_that_its_time_is_over(api: Api, signed_in: SignedIn) -> None:
    said = {
        kind: api.get("/v1/auth/me", token=token).json["error"]["message"]
        for kind, token in hostile(signed_in.access_token).items()
        if token.count(".") == 2
    }
    assert "expired. Send the refresh token to POST /v1/auth/token" in said.pop("expired")
    assert len(set(said.values())) == 1, said


def test_the_word_bearer_is_read_without_case(api: Api, signed_in: SignedIn) -> None:
    for word in ("Bearer", "bearer", "BEARER"):
        assert api.get("/v1/auth/me", headers={"Authorization": f"{word} {signed_in.access_token}"}).status == 200


def test_a_session_speaks_for_its_own_user_who_is_not_disabled(signed_in: SignedIn, bob: User) -> None:
    session_id = Session.objects.get(user=signed_in.user).pk
    stray = access_tokens.make_access_token(user_id=bob.pk, session_id=session_id, environment_id=None)
    own = credentials.read(f"Bearer {signed_in.access_token}")
    assert identity_lookup.identify(own, Value(1)) is not None
    assert identity_lookup.identify(credentials.read(f"Bearer {stray}"), Value(1)) is None
    User.objects.filter(pk=signed_in.user.pk).update(disabled_at=Now())
    assert identity_lookup.identify(own, Value(1)) is None, "whether or not its sessions were ended"


def test_a_clock_that_is_ten_seconds_off_is_forgiven(api: Api, signed_in: SignedIn) -> None:
    now = int(time.time())
    late = forge(signed_in.access_token, claims={"exp": now - 5})
    early = forge(signed_in.access_token, claims={"nbf": now + 8, "iat": now + 8})
    assert api.get("/v1/auth/me", token=late).status == 200
    assert api.get("/v1/auth/me", token=early).status == 200


def test_a_remembered_token_still_expires(signed_in: SignedIn) -> None:
    token = forge(signed_in.access_token, claims={"exp": int(time.time()) - 8})
    access_tokens.verify_access_token(token)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            access_tokens.verify_access_token(token)
        except Unauthorized:
            return
        time.sleep(0.1)
    pytest.fail("a token was accepted ten seconds after its leeway")


def test_a_remembered_token_is_of_the_future_once_the_clock_is_set_back(
    signed_in: SignedIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    access_tokens.verify_access_token(signed_in.access_token)
    days = 3 * 24 * 3600
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() - days)
    with pytest.raises(Unauthorized):
        access_tokens.verify_access_token(signed_in.access_token)
    monkeypatch.undo()
    assert access_tokens.verify_access_token(signed_in.access_token).user_id == signed_in.user.pk, (
        "it is good in its time"
    )


def test_a_token_seen_before_costs_no_statement_and_a_junk_one_neither(
    signed_in: SignedIn, django_assert_num_queries: Any
) -> None:
    credentials.read(f"Bearer {signed_in.access_token}")
    junk = [
        token
        for kind, token in hostile(signed_in.access_token).items()
        if kind not in ("kid unknown", "sid unknown", "env of nobody")
    ]
    with django_assert_num_queries(0):
        for _ in range(10):
            credentials.read(f"Bearer {signed_in.access_token}")
        for token in junk:
            with pytest.raises(Unauthorized):
                credentials.read(f"Bearer {token}")


def test_tokens_that_name_unknown_keys_do_not_flood_the_database(
    signed_in: SignedIn, django_assert_max_num_queries: Any
) -> None:
    began = time.monotonic()
    with django_assert_max_num_queries(60) as queries:
        for number in range(300):
            with pytest.raises(Unauthorized):
                access_tokens.verify_access_token(forge(signed_in.access_token, header={"kid": f"{number:043}"}))
    assert len(queries) <= 2 + 10 * (time.monotonic() - began)


# ── Rotation ──


def test_rotated_key_is_published_before_use_and_old_key_still_verifies(api: Api, signed_in: SignedIn) -> None:
    old = jwt.get_unverified_header(signed_in.access_token)["kid"]
    new = signing_keys.rotate(actor=audit.SYSTEM)
    retires_at = SigningKey.objects.values_list("retires_at", flat=True).get(pk=old)
    assert retires_at is not None
    assert retires_at - new.signs_from >= access_tokens.LIFETIME
    signing_keys.forget()
    assert {key["kid"] for key in api.get("/.well-known/jwks.json").json["keys"]} == {old, new.kid}
    assert signing_keys.current_signing_key()[0] == old
    SigningKey.objects.filter(pk=new.pk).update(signs_from="2020-01-01T00:00:00Z")
    SigningKey.objects.filter(pk=old).update(signs_from="2019-01-01T00:00:00Z")
    signing_keys.forget()
    assert signing_keys.current_signing_key()[0] == new.kid
    assert api.get("/v1/auth/me", token=signed_in.access_token).status == 200


def test_immediate_rotation_rejects_old_tokens_but_keeps_the_session(
    api: Api, signed_in: SignedIn, django_capture_on_commit_callbacks: Any
) -> None:
    assert api.get("/v1/auth/me", token=signed_in.access_token).status == 200
    with django_capture_on_commit_callbacks(execute=True):
        new = signing_keys.rotate(actor=audit.SYSTEM, immediately=True)
    assert api.get("/v1/auth/me", token=signed_in.access_token).status == 401
    body = {"grant_type": "refresh_token", "refresh_token": signed_in.refresh_token}
    fresh = api.post("/v1/auth/token", json=body).json["access_token"]
    assert jwt.get_unverified_header(fresh)["kid"] == new.kid
    assert api.get("/v1/auth/me", token=fresh).status == 200


def test_a_key_that_was_withdrawn_stays_so_after_another_rotation(api: Api, signed_in: SignedIn) -> None:
    for immediately, status in ((False, 200), (True, 401), (False, 401)):
        signing_keys.rotate(actor=audit.SYSTEM, immediately=immediately)
        signing_keys.forget()
        assert api.get("/v1/auth/me", token=signed_in.access_token).status == status


def test_a_key_that_retired_a_day_ago_is_removed(signed_in: SignedIn) -> None:
    signing_keys.rotate(actor=audit.SYSTEM, immediately=True)
    assert signing_keys.remove_retired() == 0
    SigningKey.objects.filter(retires_at__isnull=False).update(retires_at="2020-01-01T00:00:00Z")
    assert signing_keys.remove_retired() == 1
    assert SigningKey.objects.count() == 1
