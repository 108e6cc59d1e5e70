"""Prints what each organization has won. Needs PLATFORM_URL and a server key in PLATFORM_TOKEN."""

import os
from collections.abc import Iterator
from typing import Any

import httpx

client = httpx.Client(
    base_url=f"{os.environ['PLATFORM_URL']}/v1",
    headers={"Authorization": f"Bearer {os.environ['PLATFORM_TOKEN']}"},
    timeout=30,
)


def pages(path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every entry of a list that has pages."""
    cursor = None
    while True:
        page = client.post(path, json={**body, "cursor": cursor} if cursor else body).raise_for_status().json()
        yield from page["data"]
        cursor = page["next_cursor"]
        if cursor is None:
            return


won = {"where": {"stage": "won"}, "group": ["organization_id"], "count": True, "sum": ["value"]}
totals = {each["organization_id"]: each for each in pages("/rows/deals/aggregate", won)}
for organization in pages("/rows/organizations/query", {"order": "name", "limit": 100}):
    total = totals.get(organization["id"], {"count": 0, "sum_value": "0.00"})
    print(f"{organization['name']}\t{total['count']}\t{total['sum_value']}")
