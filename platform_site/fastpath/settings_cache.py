"""Settings that every request reads, as plain attributes. Django's `settings` runs Python for every look
(`LazyObject.__getattribute__`): a microsecond each, five to seven times a request. Here the first look asks it, and a
change that Django signals (`override_settings`) is forgotten at once."""

from typing import Any, Final

from django.conf import settings
from django.core.signals import setting_changed


class _CachedSettings:
    """`kept.NAME` is `settings.NAME`. Raises AttributeError for a setting that is not there."""

    def __getattr__(self, name: str) -> Any:
        found = self.__dict__[name] = getattr(settings, name)
        return found


cached_settings: Final = _CachedSettings()


def _forget(*, setting: str, **_: Any) -> None:
    cached_settings.__dict__.pop(setting, None)


setting_changed.connect(_forget)
