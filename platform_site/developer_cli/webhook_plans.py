"""The webhooks of a plan: which of the environment's each entry of webhooks.json is, and URLs with credentials."""

import secrets
from dataclasses import dataclass, field
from typing import Any

from platform_site.developer_cli.api import Api, path_part
from platform_site.developer_cli.backend_files import JsonFile
from platform_site.developer_cli.webhook_urls import REFERENCE, host_alone, is_local, normal_url, shown_url


@dataclass
class Webhook:
    """An entry of webhooks.json."""

    index: int
    name: str | None
    url: str
    new_url: bool = False
    is_new: bool = False

    @property
    def label(self) -> str:
        return self.name or shown_url(self.url)


@dataclass
class WebhooksPlan:
    document: dict[str, Any] = field(default_factory=dict)
    """The part of the configuration. URLs may hold credentials, so it only refers to new ones."""
    by_key: dict[str, Webhook] = field(default_factory=dict)
    """By key in the configuration."""
    known_ids: set[str] = field(default_factory=set)
    """Of webhooks that are in the environment."""
    warnings: list[str] = field(default_factory=list)
    only_in_environment: list[str] = field(default_factory=list)

    @property
    def local_urls(self) -> list[str]:
        """New URLs on this machine or a private network."""
        return [shown_url(each.url) for each in self.by_key.values() if each.new_url and is_local(each.url)]

    def whole_urls(self, document: dict[str, Any]) -> dict[str, str]:
        """By path in the configuration, the URLs to which its `document` refers."""
        return {
            f"webhooks.{key}.url": self.by_key[key].url
            for key, item in document.get("webhooks", {}).items()
            if REFERENCE in item.get("url", "") and REFERENCE not in self.by_key[key].url
        }


def make(api: Api, file: JsonFile) -> WebhooksPlan:
    existing = configured_webhooks(api)
    plan = WebhooksPlan(known_ids={each["id"] for each in existing})
    same = _same_webhooks(existing, file.value)
    for index, wanted in enumerate(file.value):
        current, name, url = same.get(index), wanted.get("name"), wanted["url"]
        item = {setting: value for setting, value in wanted.items() if setting not in ("id", "name", "url")}
        if "name" in wanted and name != (current and current["name"]):
            item["name"] = name
        if current is not None:
            key = current["key"]
        else:
            is_free = isinstance(name, str) and name and all(each["key"] != name for each in existing)
            key = name if is_free else f"wh_{secrets.token_hex(13)}"  # until it has an id
        webhook = Webhook(index, name, url, is_new=current is None)
        if current is None or normal_url(url) not in (current["url"], current["masked"]):
            item["url"] = url if REFERENCE in url else host_alone(url)
            webhook.new_url = True
            if is_local(url):
                plan.warnings.append(f"{file.at(f'{index}.url')}: this machine or a private network: {shown_url(url)}")
        plan.document[key] = item
        plan.by_key[key] = webhook
    in_file = {each["id"] for each in same.values()}
    plan.only_in_environment += [
        f"webhook {each['name'] or each['masked']}" for each in existing if each["id"] not in in_file
    ]
    return plan


def _same_webhooks(existing: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The existing webhook of each entry, by index: all of the same id or name first, so that none is taken by its
    URL."""
    found: dict[int, dict[str, Any]] = {}
    for key in ("id", "name", "url", "masked"):
        taken = {each["id"] for each in found.values()}
        free = [each for each in existing if each["id"] not in taken]
        for index, entry in enumerate(wanted):
            value = normal_url(entry["url"]) if key in ("url", "masked") else entry.get(key)
            same = next((each for each in free if value and each[key] == value), None)
            if index not in found and same is not None:
                found[index] = same
                free.remove(same)
    return found


def configured_webhooks(api: Api) -> list[dict[str, Any]]:
    """With `key`, their name in the configuration, and `masked`, their URL without credentials."""
    masked = api.get("/config", parts="webhooks")["config"]["webhooks"]
    listed = {each["name"] or each["id"]: each for each in api.get("/webhooks")["data"]}
    return [
        listed[key] | item | {"url": listed[key]["url"], "masked": item["url"], "key": key}
        for key, item in masked.items()
        if key in listed
    ]


def new_secrets(api: Api, plan: WebhooksPlan) -> dict[str, str]:
    """A new signing secret of each created webhook, by name, or by id without one: applying shows none."""
    created = {each.name or normal_url(each.url) for each in plan.by_key.values() if each.is_new}
    return {
        each["name"] or each["id"]: api.send("POST", f"/webhooks/{path_part(each['id'])}/rotate-secret")["secret"]
        for each in api.get("/webhooks")["data"]
        if each["id"] not in plan.known_ids and (each["name"] or each["url"]) in created
    }
