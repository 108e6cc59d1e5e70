"""The key with which Apple's client secrets are signed in tests."""

from joserfc.jwk import ECKey

KEY = ECKey.generate_key("P-256")
PEM = KEY.as_pem(private=True).decode()
SIGNING = {"team_id": "TEAM123456", "key_id": "KEY1234567", "private_key": PEM}
