"""Settings of every request as plain attributes: Django's `LazyObject` costs a microsecond each."""

from typing import Any, Final

from django.conf import settings
from django.core.signals import setting_changed


class _CachedSettings:
    def __getattr__(self, name: str) -> Any:
        found = self.__dict__[name] = getattr(settings, name)
        return found


cached_settings: Final = _CachedSettings()


def _forget(*, setting: str, **_: Any) -> None:
    cached_settings.__dict__.pop(setting, None)


setting_changed.connect(_forget)
