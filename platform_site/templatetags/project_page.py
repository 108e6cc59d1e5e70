"""The overview on the page of a project. A tag, since the page's room lies below those it tells of."""

from typing import Any

from django import template

register = template.Library()


@register.simple_tag
def project_overview(project: Any) -> dict[str, Any]:
    """`console.project_page.overview`, looked up late: unfold loads all tag libraries while it is imported itself."""
    from platform_site.console.project_page import overview

    return overview(project)
