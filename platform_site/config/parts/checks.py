from platform_site.config.parts import control_part, region_part
from platform_site.config.parts.changes import PlanChanges


def check(changes: PlanChanges) -> None:
    """Validates providers and the hosts of webhooks. Not in a transaction. Raises ValidationFailed."""
    control_part.check(changes)
    region_part.check_hosts(changes)
