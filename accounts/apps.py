from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "accounts"

    def ready(self) -> None:
        from accounts import receivers, signing_keys
        from accounts.lifecycle import checks  # noqa: F401 - importing it registers them
        from platform_site.api.keyring import register_sealed_field

        receivers.connect()
        register_sealed_field("accounts.SigningKey", "sealed_private", purpose=signing_keys.PURPOSE)
