"""The links of emails that `manage.py up` prints."""

import re

from tests.support.service import Up, wait_for


def link_to(served: Up, recipient: str, page_name: str) -> str:
    """The newest link to this page in an email to this recipient."""

    def newest() -> str | None:
        _, told, text = served.output.rpartition(f"email to {recipient}:")
        found = re.search(rf"http://\S+/auth/{page_name}\?token=lnk_\w+", text) if told else None
        return found[0] if found else None

    return str(wait_for(f"an email to {recipient}", newest, 60))
