"""Secrets at rest: what opens, what does not, and rotation over real tables."""

import io
from typing import Any

import pytest
from django.apps import apps
from django.conf import LazySettings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db.models import BinaryField
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from platform_site.http.models import IdempotencyRecord
from platform_site.security import keyring, rotation

ONE, TWO, THREE = "11" * 32, "22" * 32, "33" * 32

purposes = st.text(min_size=1, max_size=20)


@given(st.binary(max_size=200), purposes)
def test_what_is_sealed_opens_for_its_purpose(plaintext: bytes, purpose: str) -> None:
    sealed = keyring.seal(plaintext, purpose=purpose)
    assert keyring.unseal(sealed, purpose=purpose) == plaintext
    assert keyring.unseal(memoryview(sealed), purpose=purpose) == plaintext  # type: ignore[arg-type]  # psycopg2's form
    assert len(sealed) == len(plaintext) + keyring.OVERHEAD
    assert keyring.seal(plaintext, purpose=purpose) != sealed, "a nonce of its own"


@given(st.binary(max_size=50), st.integers(min_value=0), st.integers(1, 255))
def test_a_changed_byte_anywhere_does_not_open(plaintext: bytes, place: int, change: int) -> None:
    sealed = bytearray(keyring.seal(plaintext, purpose="a"))
    sealed[place % len(sealed)] ^= change
    with pytest.raises((keyring.Tampered, keyring.UnknownKey)):
        keyring.unseal(bytes(sealed), purpose="a")


@given(st.binary(max_size=50), st.data())
def test_a_shortened_or_lengthened_value_does_not_open(plaintext: bytes, data: st.DataObject) -> None:
    sealed = keyring.seal(plaintext, purpose="a")
    cut = data.draw(st.integers(0, len(sealed) - 1))
    for wrong in (sealed[:cut], sealed + b"\0", b"\2" + sealed[1:]):
        with pytest.raises((keyring.Tampered, keyring.UnknownKey)):
            keyring.unseal(wrong, purpose="a")


@given(purposes, purposes)
def test_a_value_does_not_open_for_another_purpose(one: str, other: str) -> None:
    sealed, under = keyring.seal(b"x", purpose=one), keyring.seal_under(b"s", b"x", purpose=one)
    if one != other:
        with pytest.raises(keyring.Tampered):
            keyring.unseal(sealed, purpose=other)
        with pytest.raises(keyring.Tampered):
            keyring.unseal_under(b"s", under, purpose=other)


@given(st.binary(min_size=1, max_size=64), st.binary(max_size=200), st.integers(min_value=0), st.integers(1, 255))
def test_sealed_under_a_secret_opens_with_that_secret_only(
    secret: bytes, plaintext: bytes, place: int, change: int
) -> None:
    sealed = keyring.seal_under(secret, plaintext, purpose="a")
    assert keyring.unseal_under(secret, sealed, purpose="a") == plaintext
    with pytest.raises(keyring.Tampered):
        keyring.unseal_under(secret + b"x", sealed, purpose="a")
    with pytest.raises(keyring.Tampered):
        keyring.unseal(sealed, purpose="a")
    other = keyring.seal_under(secret, plaintext, purpose="a")
    assert other[1:17] != sealed[1:17], "a salt of its own"
    assert other[17:29] != sealed[17:29], "a nonce of its own"
    changed = bytearray(sealed)
    changed[place % len(changed)] ^= change
    with pytest.raises(keyring.Tampered):
        keyring.unseal_under(secret, bytes(changed), purpose="a")


def test_the_first_key_seals_and_all_of_them_unseal() -> None:
    with override_settings(ENCRYPTION_KEYS=[ONE]):
        old = keyring.seal(b"x", purpose="a")
    with override_settings(ENCRYPTION_KEYS=[TWO, ONE]):
        new = keyring.rewrap(old, purpose="a")
        assert keyring.unseal(old, purpose="a") == keyring.unseal(new, purpose="a") == b"x"
        assert keyring.rewrap(new, purpose="a") == new, "nothing to do"
    with override_settings(ENCRYPTION_KEYS=[TWO]):
        assert keyring.unseal(new, purpose="a") == b"x"
        with pytest.raises(keyring.UnknownKey) as told:
            keyring.unseal(old, purpose="a")
    assert "ENCRYPTION_KEYS" in str(told.value)
    assert ONE not in str(told.value)


def test_values_of_earlier_releases_open_and_macs_are_the_same() -> None:
    sealed = "01c5438be38aa1d4d2332c25aa444e9accee770d3654fd6b1b04d885a11d596d5a9dcb2837bffb143e"
    under = "02fa3f5fe08f3af76ce3450480ca76e71f6352c53660b46f717a08bc2af93728bcc216b43f2aa85f2cbdd0dad1afd8a3ba"
    with override_settings(ENCRYPTION_KEYS=[ONE]):
        assert keyring.unseal(bytes.fromhex(sealed), purpose="a") == b"kept"
        assert keyring.unseal_under(b"secret", bytes.fromhex(under), purpose="a") == b"kept"
        assert keyring.mac(b"message", purpose="a").hex() == "6aeab4da3f27ce8c68f6ecd882ba867e"


@pytest.mark.parametrize("keys", [[], [""], ["11" * 16], ["11" * 31], ["zz" * 32], [ONE, "short"]])
def test_keys_that_are_none_are_named_without_being_shown(keys: list[str]) -> None:
    with override_settings(ENCRYPTION_KEYS=keys), pytest.raises(ImproperlyConfigured, match="ENCRYPTION_KEYS") as told:
        keyring.seal(b"x", purpose="a")
    assert "short" not in str(told.value)


UNDER_A_SECRET = {"accounts.Session.sealed_successor"}
"""Sealed under a client's secret alone: there is no platform key to rotate."""


def test_every_sealed_column_is_known_to_rotation() -> None:
    registered = {f"{sealed.model}.{sealed.field}" for sealed in keyring.sealed_fields}
    found = {
        f"{model._meta.label}.{field.name}"
        for model in apps.get_models()
        for field in model._meta.fields
        if isinstance(field, BinaryField) and field.name.startswith("sealed_")
    }
    assert found - registered == UNDER_A_SECRET, "call keyring.register_sealed_field in apps.py"


def records(count: int, using: str) -> list[IdempotencyRecord]:
    return IdempotencyRecord.objects.using(using).bulk_create(
        IdempotencyRecord(
            digest=n.to_bytes(32, "big"),
            fingerprint=b"",
            expires_at="2030-01-01T00:00Z",
            sealed_answer=keyring.seal(b"%d" % n, purpose="api.idempotency") if n % 5 else None,
        )
        for n in range(count)
    )


def opened(using: str) -> list[bytes | None]:
    rows = IdempotencyRecord.objects.using(using).order_by("pk")
    return [row.sealed_answer and keyring.unseal(bytes(row.sealed_answer), purpose="api.idempotency") for row in rows]


@pytest.mark.django_db(databases="__all__")
def test_rotation_reaches_every_database_and_can_be_run_again(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "BATCH", 7)
    settings.ENCRYPTION_KEYS = [ONE]
    for alias in ("default", "eu-west-1"):
        records(40, alias)
    before = opened("default")
    settings.ENCRYPTION_KEYS = [TWO, ONE]
    with pytest.raises(CommandError, match="^64 values can be decrypted, but need an older key"):
        call_command("rotate_encryption_keys", "--check", stdout=io.StringIO())
    said = io.StringIO()
    call_command("rotate_encryption_keys", stdout=said)
    assert said.getvalue().startswith("64 values")
    settings.ENCRYPTION_KEYS = [TWO]
    assert opened("default") == opened("eu-west-1") == before
    said = io.StringIO()
    call_command("rotate_encryption_keys", "--check", stdout=said)
    assert "can be removed" in said.getvalue()


@pytest.mark.django_db(databases="__all__")
def test_the_check_tells_a_missing_key_from_an_older_one(settings: LazySettings) -> None:
    settings.ENCRYPTION_KEYS = [ONE]
    records(10, "default")
    settings.ENCRYPTION_KEYS = [THREE]
    records(3, "eu-west-1")
    for keys in ([TWO, ONE], [ONE]):
        settings.ENCRYPTION_KEYS = keys
        said = io.StringIO()
        with pytest.raises(CommandError, match="^2 values cannot be decrypted"):
            call_command("rotate_encryption_keys", "--check", stdout=said)
        assert "2 need a key that ENCRYPTION_KEYS does not have" in said.getvalue()
        assert ("8 need an older key" in said.getvalue()) == (keys == [TWO, ONE])
        if keys == [TWO, ONE]:
            first = ", ".join(n.to_bytes(32, "big").hex() for n in (1, 2, 3, 4, 6))
            assert f"8 need an older key (id {first}, …)" in said.getvalue()


@pytest.mark.django_db(databases="__all__")
def test_the_check_decrypts_every_value(settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "BATCH", 3)
    settings.ENCRYPTION_KEYS = [ONE]
    for each, sealed in zip(
        records(10, "eu-west-1")[-3:],
        (keyring.seal(b"x", purpose="webhooks.secret"), keyring.seal(b"x", purpose="api.idempotency")[:-1] + b"?", b""),
        strict=True,
    ):
        IdempotencyRecord.objects.using("eu-west-1").filter(pk=each.pk).update(sealed_answer=sealed)
    said = io.StringIO()
    with pytest.raises(CommandError, match="^3 values cannot be decrypted"):
        call_command("rotate_encryption_keys", "--check", stdout=said)
    digests = ", ".join(n.to_bytes(32, "big").hex() for n in (7, 8, 9))
    assert f"3 were changed, or belong elsewhere (id {digests})" in said.getvalue()


@pytest.mark.django_db(databases="__all__")
def test_rotation_names_what_does_not_open_and_does_the_rest(settings: LazySettings) -> None:
    settings.ENCRYPTION_KEYS = [THREE]
    records(3, "default")
    settings.ENCRYPTION_KEYS = [ONE]
    records(10, "eu-west-1")
    settings.ENCRYPTION_KEYS = [TWO, ONE]
    errors = io.StringIO()
    with pytest.raises(CommandError, match="2 values could not be decrypted"):
        call_command("rotate_encryption_keys", stdout=io.StringIO(), stderr=errors)
    assert errors.getvalue().count("not in ENCRYPTION_KEYS") == 2
    assert f"default, id {(1).to_bytes(32, 'big').hex()}: " in errors.getvalue()
    settings.ENCRYPTION_KEYS = [TWO]
    assert opened("eu-west-1")[1] == b"1"


@pytest.mark.django_db(databases="__all__")
def test_a_value_that_changes_while_it_is_rotated_keeps_its_change(settings: LazySettings) -> None:
    settings.ENCRYPTION_KEYS = [ONE]
    records(4, "default")
    settings.ENCRYPTION_KEYS = [TWO, ONE]
    column = next(column for column in rotation.columns() if column.using == "default" and "idemp" in column.name)
    changed: list[Any] = []

    def change_the_next() -> None:
        if not changed:
            changed.append(
                IdempotencyRecord.objects.filter(digest=(2).to_bytes(32, "big")).update(
                    sealed_answer=keyring.seal(b"changed", purpose="api.idempotency")
                )
            )

    outcome = rotation.rotate(column, on_row=change_the_next)
    assert outcome.rotated == 2
    assert outcome.failed == []
    assert opened("default") == [None, b"1", b"changed", b"3"]
