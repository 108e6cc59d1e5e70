from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "accounts"

    def ready(self) -> None:
        from accounts import (
            checks,  # noqa: F401 - importing it registers them
            signal_handlers,
        )
        from accounts.console import admin  # noqa: F401 - registers the pages of the console
        from accounts.models import oauth
        from accounts.tokens import signing_keys
        from platform_site.security.keyring import register_sealed_field

        signal_handlers.connect()
        register_sealed_field("accounts.SigningKey", "sealed_private", purpose=signing_keys.PURPOSE)
        register_sealed_field("accounts.IdentityProvider", "sealed_client_secret", purpose=oauth.SECRET_PURPOSE)
        register_sealed_field("accounts.IdentityProvider", "sealed_private_key", purpose=oauth.KEY_PURPOSE)
