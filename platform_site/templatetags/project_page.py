"""The overview on a project's page. A tag, since the page's app may not import the apps it summarises."""

from typing import Any

from django import template

register = template.Library()


@register.simple_tag
def project_overview(project: Any) -> dict[str, Any]:
    """`console.project_page.overview`, looked up late: unfold loads all tag libraries while it is imported itself."""
    from platform_site.console.project_page import overview

    return overview(project)
