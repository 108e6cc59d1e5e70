"""Settings that cannot work are named by `manage.py check`."""

from collections.abc import Callable
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command

from platform_site import env
from platform_site.embedded.data_dir import Layout

READERS = (env.number, env.integer)


@pytest.fixture
def complete(settings: LazySettings) -> None:
    """What production must have beside its servers."""
    settings.PLATFORM_DOMAIN, settings.TRUSTED_PROXIES, settings.METRICS_TOKEN = "api.example", ["10.0.0.1"], "t" * 20
    settings.BASE_URL, settings.ALLOWED_HOSTS = "https://api.example", ["api.example"]


def found(*, deploy: bool = False) -> list[str]:
    return [
        message.id for message in run_checks(include_deployment_checks=deploy) if str(message.id).startswith("api.")
    ]


@pytest.mark.parametrize("keys", [[], ["short"], ["11" * 32, "zz" * 32]])
def test_a_key_that_is_none(settings: LazySettings, keys: list[str]) -> None:
    assert found() == []
    settings.ENCRYPTION_KEYS = keys
    assert found() == ["api.E001"]


@pytest.mark.parametrize("command", ["serve", "work"])
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ENCRYPTION_KEYS", "00" * 31, "entry 1 must be 64 hex digits"),
        ("OUTBOUND_ALLOWED_NETWORKS", "10.0.0.1/8", "OUTBOUND_ALLOWED_NETWORKS: 10.0.0.1/8 has host bits set"),
        ("TRUSTED_PROXIES", "balancer", "TRUSTED_PROXIES: 'balancer' does not appear to be an IPv4 or IPv6 network"),
        ("FUNCTION_REQUIRED_SANDBOX_LAYERS", "namespace", "unknown layer namespace. Known: namespaces, "),
    ],
)
def test_nothing_serves_with_what_cannot_be_read(
    settings: LazySettings, command: str, name: str, value: str, said: str
) -> None:
    setattr(settings, name, [value])
    with pytest.raises(CommandError, match=said):
        call_command(command)


@pytest.mark.parametrize("network", ["localhost", "127.0.0.1/8", "10.0.0.0/40"])
def test_a_network_that_is_none(settings: LazySettings, network: str) -> None:
    settings.OUTBOUND_ALLOWED_NETWORKS = ["10.0.0.0/8", network]
    assert found() == ["api.E002"]


@pytest.mark.exhaustive
@pytest.mark.usefixtures("complete")
@pytest.mark.parametrize("network", ["127.0.0.0/8", "0.0.0.0/0", "169.254.0.0/16", "::/0", "fd00::/8"])
def test_an_inner_network_that_is_open_in_production(settings: LazySettings, network: str) -> None:
    settings.OUTBOUND_ALLOWED_NETWORKS = [network]
    assert found(deploy=True) == ["api.E007"], "in development all networks are allowed"
    settings.PRODUCTION = True
    assert found() == []
    assert found(deploy=True) == ["api.W001"]
    settings.OUTBOUND_ALLOWED_NETWORKS = ["10.1.0.0/16"]
    assert found(deploy=True) == []


@pytest.mark.parametrize("proxy", ["balancer", "10.0.0.1/8", "*"])
def test_a_proxy_that_is_no_network(settings: LazySettings, proxy: str) -> None:
    settings.TRUSTED_PROXIES = ["10.0.0.1", "10.1.0.0/16"]
    assert found() == []
    settings.TRUSTED_PROXIES = ["10.0.0.1", proxy]
    assert found() == ["api.E004"]


@pytest.mark.exhaustive
@pytest.mark.usefixtures("complete")
def test_a_server_that_production_does_not_name(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = ["DATABASE_URL", "REGION_US_EAST_1_URL", "REGION_EU_WEST_1_URL", "REGION_AP_SOUTHEAST_1_URL", "REDIS_URL"]
    for name in names:
        monkeypatch.setenv(name, "somewhere")
    settings.PRODUCTION, settings.LAYOUT = True, Layout(tmp_path)
    assert found(deploy=True) == []
    monkeypatch.delenv("REDIS_URL")
    monkeypatch.delenv("REGION_EU_WEST_1_URL")
    assert found(deploy=True) == ["api.E005", "api.E005"]
    for command in ("serve", "work"):
        with pytest.raises(CommandError, match=r"^REGION_EU_WEST_1_URL is not set\. Production needs it\.$"):
            call_command(command)
    settings.LAYOUT.ensure_secrets()  # `up` starts what is not named
    assert found(deploy=True) == []


@pytest.mark.usefixtures("complete")
def test_production_with_a_short_secret_key(settings: LazySettings) -> None:
    settings.SECRET_KEY = "fill-in"
    assert found(deploy=True) == ["api.E007"]
    settings.PRODUCTION = True
    assert found(deploy=True) == ["api.E009"]
    for command in ("serve", "work"):
        with pytest.raises(CommandError, match=r"^SECRET_KEY must have at least 50 random characters\.$"):
            call_command(command)


@pytest.mark.usefixtures("complete")
def test_production_without_domain_proxy_or_token_for_metrics(settings: LazySettings, tmp_path: Path) -> None:
    settings.LAYOUT = Layout(tmp_path)
    settings.LAYOUT.ensure_secrets()
    settings.PRODUCTION = settings.SECURE_SSL_REDIRECT = True
    assert found(deploy=True) == []
    settings.PLATFORM_DOMAIN, settings.TRUSTED_PROXIES, settings.METRICS_TOKEN = "localhost", [], None
    assert found(deploy=True) == ["api.E006", "api.W002", "api.W003"]
    settings.PRODUCTION = False
    assert found(deploy=True) == ["api.E007"]


@pytest.mark.usefixtures("complete")
def test_production_that_refuses_its_own_domain_or_has_links_without_tls(
    settings: LazySettings, tmp_path: Path
) -> None:
    settings.LAYOUT = Layout(tmp_path)
    settings.LAYOUT.ensure_secrets()
    settings.PRODUCTION = True
    assert found(deploy=True) == []
    settings.ALLOWED_HOSTS, settings.BASE_URL = ["www.example"], "http://api.example"
    assert found(deploy=True) == ["api.E010", "api.W004"]
    settings.ALLOWED_HOSTS, settings.BASE_URL = [".example"], "https://api.example"
    assert found(deploy=True) == []


def test_a_replica_that_is_its_own_primary_or_there_twice(settings: LazySettings) -> None:
    primary = settings.DATABASES["us-east-1"]
    one, two = ({**primary, "HOST": host, "PORT": port} for host, port in (("one", ""), ("two", "6432")))
    settings.REPLICAS = {"us-east-1": {"us-east-1-replica-1": one, "us-east-1-replica-2": two}}
    assert found() == []
    settings.REPLICAS = {"us-east-1": {"us-east-1-replica-1": one, "us-east-1-replica-2": {**one, "PORT": "5432"}}}
    assert found() == ["api.E003"]
    settings.REPLICAS = {"us-east-1": {"us-east-1-replica-1": primary}}
    [message] = [message for message in run_checks() if message.id == "api.E003"]
    assert message.msg == "REGION_US_EAST_1_REPLICA_URLS: us-east-1-replica-1 is the primary itself"


@pytest.mark.usefixtures("complete")
def test_two_regions_with_one_database(settings: LazySettings) -> None:
    settings.PRODUCTION = True
    assert found(deploy=True) == []
    settings.DATABASES = settings.DATABASES | {"eu-west-1": settings.DATABASES["us-east-1"]}
    [message] = [each for each in run_checks(include_deployment_checks=True) if each.id == "api.E008"]
    assert message.msg == "REGION_EU_WEST_1_URL names the database of REGION_US_EAST_1_URL. Each needs its own."


def test_a_list_of_addresses_may_have_lists_of_hosts_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = "postgresql://u:p@/name?host=a,b&target_session_attrs=standby", "postgres://c:6432/name"
    monkeypatch.setenv("REGION_US_EAST_1_REPLICA_URLS", f" {one}, {two} ")
    assert env.postgres_urls("REGION_US_EAST_1_REPLICA_URLS") == [one, two]
    monkeypatch.setenv("REGION_US_EAST_1_REPLICA_URLS", "")
    assert env.postgres_urls("REGION_US_EAST_1_REPLICA_URLS") == []
    with pytest.raises(ImproperlyConfigured, match="REGION_US_EAST_1_REPLICA_URLS must start with postgresql://"):
        env.postgres("REGION_US_EAST_1_REPLICA_URLS", "replica-1")


@pytest.mark.parametrize("password", ["pass/word", "pass?word", "pass#word", "pass[word", "p@a:ss/word", "p@ss/word"])
def test_a_url_that_cannot_be_read_is_named_without_its_password(password: str) -> None:
    for read, url in ((env.postgres, "postgresql://u:{}@host/name"), (env.redis, "redis://u:{}@host/0")):
        with pytest.raises(ImproperlyConfigured, match="^DATABASE_URL is not a URL with one host and port") as told:
            read("DATABASE_URL", url.format(password))
        assert told.value.__cause__ is None
        assert "ss" not in str(told.value).replace("password", "")


def test_the_url_of_redis_has_its_scheme() -> None:
    for url in ("redis://host/0", "rediss://:p@host:6380/0", "unix://platform:p@/run/valkey.sock?db=1"):
        assert env.redis("REDIS_URL", url) == url
    for url in ("host:6379", "http://host", "/run/valkey.sock"):
        with pytest.raises(ImproperlyConfigured, match="^REDIS_URL must start with redis://"):
            env.redis("REDIS_URL", url)
    for url in ("redis://host/x", "rediss://host/0/1", "redis://host/-1"):
        with pytest.raises(ImproperlyConfigured, match="^REDIS_URL must end with the number of a database"):
            env.redis("REDIS_URL", url)


def test_a_domain_is_a_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (
        "https://api.example.com",
        "api.example.com/",
        "api.example.com:443",
        "a b",
        "*.example.com",
        ".a.com",
        "a.com.",
    ):
        monkeypatch.setenv("PLATFORM_DOMAIN", value)
        with pytest.raises(ImproperlyConfigured, match="^PLATFORM_DOMAIN must be a domain such as api.example.com"):
            env.domain("PLATFORM_DOMAIN", "localhost")
    monkeypatch.setenv("PLATFORM_DOMAIN", "")
    assert env.domain("PLATFORM_DOMAIN", "localhost") == "localhost"


@pytest.mark.parametrize(
    ("read", "value", "said"),
    [
        *((read, value, "a number") for value in ("nan", "inf", "-Infinity", "1e999", "ten") for read in READERS),
        *((read, "0.5", "at least 1") for read in READERS),
        *((read, "-3", "at least 1") for read in READERS),
        *((read, "1000.5", "at most 1000") for read in READERS),
        (env.integer, "1.5", "a whole number"),
    ],
)
def test_a_number_that_is_none_stops_the_start_with_its_name(
    monkeypatch: pytest.MonkeyPatch, read: Callable[..., float], value: str, said: str
) -> None:
    monkeypatch.setenv("WEB_THREADS", value)
    with pytest.raises(ImproperlyConfigured, match=f"^WEB_THREADS must be {said}, not '{value}'"):
        read("WEB_THREADS", 16, minimum=1, maximum=1000)


@pytest.mark.parametrize("read", READERS)
def test_a_number_has_a_bound_whoever_reads_it(monkeypatch: pytest.MonkeyPatch, read: Callable[..., float]) -> None:
    monkeypatch.setenv("STATEMENT_TIMEOUT_MS", "2147483647")
    assert read("STATEMENT_TIMEOUT_MS", 5000, minimum=0) == 2_147_483_647
    monkeypatch.setenv("STATEMENT_TIMEOUT_MS", "2147483648")
    with pytest.raises(ImproperlyConfigured, match="must be at most 2147483647, not '2147483648'"):
        read("STATEMENT_TIMEOUT_MS", 5000, minimum=0)


def test_a_list_of_numbers_holds_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBHOOK_RETRY_SCHEDULE", " 0, 0.5,7 ,")
    assert env.numbers("WEBHOOK_RETRY_SCHEDULE", minimum=0) == [0, 0.5, 7]
    monkeypatch.setenv("WEBHOOK_RETRY_SCHEDULE", "0,soon")
    with pytest.raises(ImproperlyConfigured, match="^WEBHOOK_RETRY_SCHEDULE must be a number, not 'soon'"):
        env.numbers("WEBHOOK_RETRY_SCHEDULE", minimum=0)


def test_an_origin_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("https://api.example.com", "https://api.example.com/", "http://[::1]:8000"):
        monkeypatch.setenv("BASE_URL", value)
        assert env.origin("BASE_URL", "") == value.removesuffix("/")
    for value in (
        "api.example.com",
        "https://",
        "https://a.example/api",
        "https://a.example//",
        "ftp://a",
        "https://u@a",
    ):
        monkeypatch.setenv("BASE_URL", value)
        with pytest.raises(ImproperlyConfigured, match="^BASE_URL must be a URL such as"):
            env.origin("BASE_URL", "")
    monkeypatch.setenv("CSRF_TRUSTED_ORIGINS", "https://a.example/, https://*.b.example")
    assert env.origins("CSRF_TRUSTED_ORIGINS") == ["https://a.example", "https://*.b.example"]
    monkeypatch.setenv("CSRF_TRUSTED_ORIGINS", "https://a.example, b.example")
    with pytest.raises(ImproperlyConfigured, match="^CSRF_TRUSTED_ORIGINS must be .*, not 'b.example'"):
        env.origins("CSRF_TRUSTED_ORIGINS")


def test_hosts_have_no_scheme_and_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("api.example.com", ".example.com", "10.0.0.1", "[::1]", "*", "localhost, .localhost"):
        monkeypatch.setenv("ALLOWED_HOSTS", value)
        assert env.hosts("ALLOWED_HOSTS") == value.split(", ")
    for value in ("https://a.example", "a.example:443", "*.a.example", "a.example/", "a b", "[::1]:80"):
        monkeypatch.setenv("ALLOWED_HOSTS", f"localhost,{value}")
        with pytest.raises(ImproperlyConfigured, match="^ALLOWED_HOSTS must be names such as"):
            env.hosts("ALLOWED_HOSTS")


def test_a_server_is_a_name_or_an_ip(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", "smtp.example.com", "localhost", "10.0.0.1", "::1"):
        monkeypatch.setenv("EMAIL_HOST", value)
        assert env.server("EMAIL_HOST") == value
    for value in ("smtp://a.example", "a.example:587", "a.example/", "a b"):
        monkeypatch.setenv("EMAIL_HOST", value)
        with pytest.raises(ImproperlyConfigured, match="^EMAIL_HOST must be a name or an IP, without port, not"):
            env.server("EMAIL_HOST")


def test_parameters_of_a_database_url_are_known() -> None:
    url = "postgresql://u:p@host/name?sslmode=require&target_session_attrs=read-write"
    assert env.postgres("DATABASE_URL", url)["OPTIONS:sslmode"] == "require"
    with pytest.raises(ImproperlyConfigured, match="^DATABASE_URL has the parameter 'ssl'"):
        env.postgres("DATABASE_URL", "postgresql://u:p@host/name?ssl=true")
