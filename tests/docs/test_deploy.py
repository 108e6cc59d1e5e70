"""The files of docs/deploy: valid by Kubernetes' own schemas, and naming only commands and variables that exist."""

import configparser
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from django.conf import settings
from django.core.management import load_command_class

from functions.runtime.pool import Pool
from platform_site.embedded.data_dir import REGIONS, region_variable
from platform_site.identity.plans import PLANS
from platform_site.postgres.libpq_connection import PREPARED_PER_CONNECTION
from platform_site.server.http_protocol import IDLE_SECONDS
from tests.support.service import ROOT

DEPLOY = ROOT / "docs" / "deploy"
KUBERNETES = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
OTHERS = {"caddy:2.11", "postgres:18", "valkey/valkey:9"}


def containers() -> Iterator[tuple[str, list[str]]]:
    """Name and arguments of each container that runs our image."""
    for thing in KUBERNETES:
        template = thing.get("spec", {}).get("template")
        for container in template["spec"]["containers"] if template else ():
            yield f"{thing['kind']} {thing['metadata']['name']}", container["args"]
    for name, service in COMPOSE["services"].items():
        if service["image"] not in OTHERS and "command" in service:
            yield f"service {name}", service["command"]
    for unit in (DEPLOY / "systemd").glob("*.service"):
        [started] = re.findall(r"^ExecStart=\S+/python manage.py (.*)$", unit.read_text(), re.MULTILINE)
        yield unit.name, started.split()


def documented() -> set[str]:
    page = (ROOT / "docs" / "reference" / "settings.md").read_text()
    return set(re.findall(r"^\| `([A-Z_0-9]+)` \|", page, re.MULTILINE))


@pytest.mark.parametrize("thing", KUBERNETES, ids=lambda thing: f"{thing['kind']} {thing['metadata']['name']}")
def test_a_manifest_is_valid(thing: Any) -> None:
    kubernetes_validate.validate(thing, "1.34", strict=True)


@pytest.mark.parametrize(
    ("name", "arguments"), list(containers()), ids=lambda value: value if type(value) is str else ""
)
def test_a_container_runs_a_command_that_exists(name: str, arguments: list[str]) -> None:
    command = load_command_class("platform_site", arguments[0])
    command.create_parser("manage.py", arguments[0]).parse_args(arguments[1:])


def test_only_documented_variables_are_set() -> None:
    compose = set(COMPOSE["x-platform"]["environment"])
    maps = {name for thing in KUBERNETES for name in (thing.get("data") or thing.get("stringData") or {})}
    assert compose - documented() == set()
    assert maps - documented() == set()


def test_memory_limits_hold_the_largest_pools_of_functions() -> None:
    largest = max(plan.function_memory_mb for plan in PLANS.values()) + Pool.MEMORY_OVERHEAD_MB
    limits: dict[str, int] = {}
    for thing in KUBERNETES:
        for container in thing["spec"]["template"]["spec"]["containers"] if thing["kind"] == "Deployment" else ():
            arguments, resources = container["args"], container["resources"]
            if "serve" not in arguments and "functions" not in arguments:
                continue
            set_here = {each["name"]: each["value"] for each in container.get("env", ())}
            size = int(set_here.get("FUNCTION_POOL_SIZE", 16))
            workers = int(arguments[arguments.index("--workers") + 1]) if "serve" in arguments else 1
            limits[thing["metadata"]["name"]] = int(resources["limits"]["memory"].removesuffix("Gi")) * 1024
            assert limits[thing["metadata"]["name"]] >= workers * size * largest + 512
    assert limits.keys() == {"web", "worker-functions"}


def test_what_the_compose_file_asks_for_is_in_the_example() -> None:
    asked = set(re.findall(r"\$\{(\w+)", (DEPLOY / "compose.yaml").read_text()))
    offered = set(re.findall(r"^(\w+)=", (DEPLOY / "env.example").read_text(), re.MULTILINE))
    assert asked == offered


def test_each_step_of_a_release_finds_what_it_applies() -> None:
    """Migrations come before what needs them, and nothing is applied by no step."""
    steps: dict[str, set[str]] = {}
    for thing in KUBERNETES:
        steps.setdefault(thing["metadata"]["labels"]["step"], set()).add(thing["kind"])
    named = re.findall(r"-l step=(\w+)", (DEPLOY / "kubernetes.yaml").read_text())
    assert list(steps) == named == ["settings", "release", "run"]
    assert steps["settings"] == {"Namespace", "Secret", "ConfigMap"}
    assert steps["release"] == {"Job"}


def test_the_proxies_close_idle_connections_before_the_web_does() -> None:
    for name, pattern in (("Caddyfile", r"^\s+keepalive (\d+)s$"), ("nginx.conf", r"^\s+keepalive_timeout (\d+)s;$")):
        [seconds] = re.findall(pattern, (DEPLOY / name).read_text(), re.MULTILINE)
        assert int(seconds) < IDLE_SECONDS
    page = (ROOT / "docs" / "how-to" / "deployment.md").read_text()
    assert f"| Idle connections to the web | Close before {IDLE_SECONDS:g} s |" in page
    [waits] = re.findall(r"proxy_read_timeout (\d+)s;", (DEPLOY / "nginx.conf").read_text())
    assert int(waits) > max(plan.function_timeout_ms for plan in PLANS.values()) / 1000


def test_no_proxy_judges_a_server_by_the_status_of_its_answers() -> None:
    """A tenant's function may answer 503 at any rate: a proxy that counts those would disable all servers for all
    tenants."""
    names = ("nginx.conf", "Caddyfile", "haproxy.cfg")
    nginx, caddy, haproxy = (re.sub(r"#.*", "", (DEPLOY / name).read_text()) for name in names)
    assert re.findall(r"proxy_next_upstream ([^;]+);", nginx) == ["error timeout"]
    assert "fail_duration" in caddy
    assert "unhealthy" not in caddy
    assert "observe" not in haproxy
    assert "retry-on" not in haproxy


def test_no_secret_of_a_developer_gets_into_an_image_or_the_repository() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert {".git", ".venv", ".data", "**/.env"} <= set(ignored)
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()


def test_the_pooler_knows_the_databases_of_the_compose_file() -> None:
    pooler = configparser.ConfigParser(comment_prefixes=(";;",))
    pooler.read(DEPLOY / "pgbouncer.ini")
    urls = [value for value in COMPOSE["x-platform"]["environment"].values() if "postgresql://" in value]
    assert set(pooler["databases"]) == {url.rpartition("/")[2] for url in urls}
    assert pooler["pgbouncer"]["pool_mode"] == "transaction"
    assert int(pooler["pgbouncer"]["max_prepared_statements"]) >= PREPARED_PER_CONNECTION + 100
    assert {
        "DATABASE_DIRECT_URL",
        *(f"{name[:-4]}_DIRECT_URL" for name in map(region_variable, REGIONS)),
    } <= documented()


def test_a_pooled_session_is_told_what_an_ordinary_one_asks_for() -> None:
    """`pooled.sql` has every setting that we put into a session's start, but for those of the socket."""
    asked = dict(re.findall(r"-c (\w+)=(\S+)", settings.DATABASES["us-east-1"]["OPTIONS"]["options"]))
    told = dict(re.findall(r"\('(\w+)', '(\w+)'\)", (DEPLOY / "pooled.sql").read_text()))
    ours = {name for name in asked if not name.startswith("tcp_")}
    assert set(told) | {"search_path"} == ours | {"timezone"}
    # A test run allows longer idle transactions; the file has the default.
    longer = "idle_in_transaction_session_timeout"
    assert {name: told[name] for name in ours - {"search_path", longer}} == {
        name: asked[name] for name in ours - {"search_path", longer}
    }


def test_the_files_named_exist() -> None:
    dockerfile = DEPLOY / COMPOSE["x-platform"]["build"]["context"] / COMPOSE["x-platform"]["build"]["dockerfile"]
    assert dockerfile.resolve() == DEPLOY / "Dockerfile"
    copied = re.findall(r"^COPY (?!--from)(\S+)", dockerfile.read_text(), re.MULTILINE)
    assert [path for path in copied if not (ROOT / path).exists()] == []
    mounted = [volume for service in COMPOSE["services"].values() for volume in service.get("volumes", ())]
    assert [
        each for each in mounted if each.startswith("./") and not (DEPLOY / Path(each.split(":")[0])).exists()
    ] == []
