"""Kept settings are what Django's are, also while they are overridden."""

import pytest
from django.conf import settings
from django.test import override_settings

from platform_site.fastpath.settings_cache import cached_settings


def test_cached_setting_follows_overrides_and_their_end() -> None:
    before = settings.MAX_BODY_BYTES
    assert cached_settings.MAX_BODY_BYTES == before
    with override_settings(MAX_BODY_BYTES=before + 1):
        assert cached_settings.MAX_BODY_BYTES == before + 1
        with override_settings(MAX_BODY_BYTES=before + 2):
            assert cached_settings.MAX_BODY_BYTES == before + 2
        assert cached_settings.MAX_BODY_BYTES == before + 1
    assert cached_settings.MAX_BODY_BYTES == before


def test_a_setting_that_is_not_there_is_not_kept() -> None:
    with pytest.raises(AttributeError):
        _ = cached_settings.NO_SUCH_SETTING
    with override_settings(NO_SUCH_SETTING=1):
        assert cached_settings.NO_SUCH_SETTING == 1
    with pytest.raises(AttributeError):
        _ = cached_settings.NO_SUCH_SETTING
