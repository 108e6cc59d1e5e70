"""The sweeps of the roof: the console's figures."""

from typing import Final

from django.conf import settings

from platform_site.api.sweeps import sweep
from platform_site.figures import rollups

REGIONS_EVERY: Final = 15.0
CONTROL_EVERY: Final = 60.0


@sweep(every=REGIONS_EVERY)
def measure_regions() -> None:
    """Queues, deliveries and runs of each region; one that is away does not keep the others from being looked at."""
    for region in settings.REGION_DATABASES:
        rollups.measure_region(region)


@sweep(every=CONTROL_EVERY)
def measure_control() -> None:
    rollups.measure_control()
    rollups.forget_old()
