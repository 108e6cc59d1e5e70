"""Pages that list what the code has: nothing is missing, nothing is invented, no link leads nowhere."""

import json
import re
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from django.core.management import get_commands
from django.db import connection
from django.test import Client
from django.urls import resolve
from django.utils import timezone
from prometheus_client.metrics import MetricWrapperBase

from accounts import audit
from accounts.models import AuditEntry
from platform_site.observability import metrics
from platform_site.observability.lag import Lag
from platform_site.tasks import measure_control, measure_regions, record_worker_heartbeat
from tests.support import response_invariants
from tests.support.service import ROOT

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def test_the_page_of_errors_has_every_code_with_its_status() -> None:
    page = (ROOT / "docs" / "reference" / "errors.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([\d, ]+) \|", page, re.MULTILINE)
    documented = {code: {int(status) for status in statuses.split(",")} for code, statuses in rows}
    assert documented == response_invariants.CODES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_commands_that_pages_name_exist() -> None:
    known = {*get_commands(), "help"}
    for page in PAGES:
        named = set(re.findall(r"manage\.py ([a-z][a-z_]+)", page.read_text()))
        assert named <= known, (page.name, named - known)


def test_addresses_that_the_page_of_rotation_names_exist() -> None:
    schema = json.loads(Client().get("/v1/openapi.json").content)
    known = {
        (verb.upper(), re.sub(r"\{\w+\}", "{}", path)) for path, verbs in schema["paths"].items() for verb in verbs
    }
    page = (ROOT / "docs" / "how-to" / "operations" / "rotation.md").read_text()
    named = re.findall(r"`(GET|POST|PUT|PATCH|DELETE) (/v1/[^` ]+)`", page)
    assert len(named) > 5
    for verb, path in named:
        assert (verb, re.sub(r"\{\w+\}", "{}", path)) in known, (verb, path)


@pytest.mark.django_db(databases="__all__")
def test_the_page_of_metrics_has_each_metric_and_its_alerts_use_no_other() -> None:
    record_worker_heartbeat()
    measure_regions()
    measure_control()
    found = {each._name for each in vars(metrics).values() if isinstance(each, MetricWrapperBase)}
    found |= {family.name for family in Lag().collect()}
    page = (ROOT / "docs" / "reference" / "metrics-and-alerts.md").read_text()
    table, alerts = page.split("## Alerts")
    documented = re.findall(r"`(platform_\w+)(?:\{[a-z,]+\})?`", table)
    assert sorted(name.removesuffix("_total") for name in documented) == sorted(found)
    [group] = yaml.safe_load(alerts.split("```yaml")[1].split("```")[0])["groups"]
    for rule in group["rules"]:
        assert set(re.findall(r"platform_\w+", rule["expr"])) <= set(documented), rule["alert"]


def test_an_alert_names_the_route_of_inbound_endpoints() -> None:
    page = (ROOT / "docs" / "reference" / "metrics-and-alerts.md").read_text()
    assert f'route!="/{resolve("/v1/inbound/whk_x").route}"' in page


def test_the_readme_or_another_page_leads_to_each_page() -> None:
    linked = {
        (page.parent / target).resolve()
        for page in PAGES
        for target in re.findall(r"\]\(([^)#\s]+\.md)", page.read_text())
        if "://" not in target
    }
    assert [page for page in PAGES if page.name != "README.md" and page not in linked] == []


@pytest.mark.django_db
def test_documented_statement_trims_the_audit_log() -> None:
    page = (ROOT / "docs" / "reference" / "console.md").read_text()
    [statement] = re.findall(r"^    (DELETE FROM accounts_auditentry .*);$", page, re.MULTILINE)
    entries = [audit.record("key.issued", "key_1", actor=audit.SYSTEM) for _ in range(2)]
    AuditEntry.objects.filter(pk=entries[0].pk).update(at=timezone.now() - timedelta(days=732))
    with connection.cursor() as cursor:
        cursor.execute(statement)
    assert list(AuditEntry.objects.values_list("pk", flat=True)) == [entries[1].pk]
