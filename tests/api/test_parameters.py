"""Query parameters are read the same however often, by whom, and however long they are."""

import pytest

from platform_site.http.errors import ValidationFailed
from platform_site.http.requests import read_parameters

LIST = frozenset({"limit", "cursor"})


@pytest.mark.parametrize("more", ["", "&_=" + "x" * 600], ids=["short", "long"])
def test_what_one_reader_does_with_its_parameters_no_other_meets(more: str) -> None:
    first = read_parameters("limit=5" + more, LIST)
    first["limit"] = first["cursor"] = "changed"
    assert read_parameters("limit=5" + more, LIST) == {"limit": "5"}


@pytest.mark.parametrize("more", ["", "&_=" + "x" * 600], ids=["short", "long"])
def test_the_same_text_means_what_its_address_takes(more: str) -> None:
    text = "limit=5&with=list" + more
    for _ in range(2):
        with pytest.raises(ValidationFailed) as refused:
            read_parameters(text, LIST)
        assert [field.field for field in refused.value.fields] == ["with"]
        found = read_parameters(text, frozenset({"limit", "with"}))
        assert found == {"limit": "5", "with": "list"}
        everything = read_parameters(text, None)
        assert (everything["limit"], everything["with"]) == ("5", "list")
