from typing import Any, Final

from accounts.models.oauth import IdentityProvider
from accounts.oauth import checks, providers
from accounts.oauth.client import metadata
from accounts.oauth.client.transport import Calls
from accounts.oauth.errors import ProviderAnswerInvalid, ProviderUnreachable
from platform_site.http.errors import ValidationFailed

_PRESETS: Final = frozenset(preset.get("issuer") for preset in providers.PRESETS.values())


def try_check(issuer: str, pool_id: str | None) -> dict[str, Any]:
    """As `check`, before a transaction begins: `issuer` or `issuer_errors` for `providers.add` and `change`."""
    try:
        return {"issuer": check(issuer, pool_id)}
    except ValidationFailed as error:
        return {"issuer_errors": error.fields}


def check(issuer: str, pool_id: str | None) -> str:
    """The issuer as its discovery document spells it. Makes up to two requests: never call it in a transaction. Leaves
    invalid URLs to `checks`. Raises ValidationFailed naming `issuer`."""
    if issuer in _PRESETS or checks.problems_of_urls(issuer, {}):
        return issuer
    calls = Calls(IdentityProvider(environment_id=pool_id, kind=IdentityProvider.Kind.OIDC, issuer=issuer))
    try:
        known = metadata.of(calls, fresh=True)
        metadata.keys(calls, known, again=True)
    except ProviderUnreachable as error:
        message = (
            f"The issuer's discovery document or keys cannot be read now ({error.why}). Check the URL, or try again."
        )
        raise ValidationFailed.of("issuer", "unreachable", message) from None
    except ProviderAnswerInvalid as error:
        message = f"Nobody could sign in with this issuer: {error.why}."
        raise ValidationFailed.of("issuer", "invalid_discovery", message) from None
    return issuer if known.issuer_template else str(known.issuer)
