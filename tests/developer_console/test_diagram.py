"""The diagram of a schema: every table and reference is in it, boxes do not overlap, names are text."""

import itertools
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from platform_site.developer_console.schema.diagram import picture_of, relations_of
from tests.developer_console.conftest import Desk
from tests.rows.conftest import Tracker

TABLES = [f"t{index}" for index in range(6)]
tables = st.dictionaries(
    st.sampled_from(TABLES), st.lists(st.sampled_from(TABLES), max_size=5), min_size=1
).map(
    lambda found: {
        name: {
            "columns": {
                f"c{at}": {"type": "reference", "to": to} if to in found else {"type": "text", "null": True}
                for at, to in enumerate(targets * 4)
            }
        }
        for name, targets in found.items()
    }
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tables)
def test_boxes_do_not_overlap(document: dict[str, Any]) -> None:
    relations = relations_of(document)
    picture = picture_of(document, relations)
    assert [box.name for box in picture.boxes] == list(document)
    assert len(picture.paths) == len(relations)
    for box in picture.boxes:
        assert 0 <= box.x < box.right <= picture.width
        assert 0 <= box.y < box.y + box.height <= picture.height
        assert len(box.columns) + box.more == len(document[box.name]["columns"])
    for one, other in itertools.combinations(picture.boxes, 2):
        is_apart = one.right <= other.x or other.right <= one.x
        assert is_apart or one.y + one.height <= other.y or other.y + other.height <= one.y


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_a_viewer_sees_it_without_inline_styles(tracker: Tracker, desk_of: Callable[[str], Desk]) -> None:
    viewer = desk_of("viewer")
    page = unescape(viewer.get("schema/diagram").content.decode())
    assert 'aria-label="Table tasks"' in page
    assert "<style" not in page
    assert 'style="' not in page
    assert viewer.post("schema/diagram", {}).status_code == 405
