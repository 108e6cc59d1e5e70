"""Settings that cannot work are named by `manage.py check`."""

import pytest
from django.conf import LazySettings
from django.core.checks import run_checks


def found(*, deploy: bool = False) -> list[str]:
    return [
        message.id for message in run_checks(include_deployment_checks=deploy) if str(message.id).startswith("api.")
    ]


@pytest.mark.parametrize("keys", [[], ["short"], ["11" * 32, "zz" * 32]])
def test_a_key_that_is_none(settings: LazySettings, keys: list[str]) -> None:
    assert found() == []
    settings.ENCRYPTION_KEYS = keys
    assert found() == ["api.E001"]


@pytest.mark.parametrize("network", ["localhost", "127.0.0.1/8", "10.0.0.0/40"])
def test_a_network_that_is_none(settings: LazySettings, network: str) -> None:
    settings.OUTBOUND_ALLOWED_NETWORKS = ["10.0.0.0/8", network]
    assert found() == ["api.E002"]


@pytest.mark.parametrize("network", ["127.0.0.0/8", "0.0.0.0/0", "169.254.0.0/16", "::/0", "fd00::/8"])
def test_an_inner_network_that_is_open_in_production(settings: LazySettings, network: str) -> None:
    settings.OUTBOUND_ALLOWED_NETWORKS = [network]
    assert found(deploy=True) == []
    settings.PRODUCTION = True
    assert found() == []
    assert found(deploy=True) == ["api.W001"]
    settings.OUTBOUND_ALLOWED_NETWORKS = ["10.1.0.0/16"]
    assert found(deploy=True) == []
