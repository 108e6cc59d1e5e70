"""docs/reference/contract.md lists every endpoint of the service."""

import re
from pathlib import Path

from tests.support.client import Api

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "contract.md"
METHODS = {"get", "post", "put", "patch", "delete"}


def test_the_page_lists_every_address_of_the_service_and_no_other(api: Api) -> None:
    described = api.get("/v1/openapi.json").json["paths"]
    served = {f"{method.upper()} {path}" for path, methods in described.items() for method in METHODS & methods.keys()}
    listed = set(re.findall(r"`((?:GET|POST|PUT|PATCH|DELETE) /[^` ]+)`", PAGE.read_text("utf-8")))
    assert listed - {"GET /v1/openapi.json"} == served
