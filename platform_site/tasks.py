"""The sweeps of the roof: the console's figures."""

from typing import Final

from django.conf import settings

from platform_site.background.periodic import apart, sweep
from platform_site.console import rollups
from platform_site.observability import lag

HEARTBEAT_EVERY: Final = 5.0
REGIONS_EVERY: Final = 15.0
CONTROL_EVERY: Final = 60.0


@sweep(every=HEARTBEAT_EVERY, at_start=True)
def say_that_a_worker_lives() -> None:
    """For `/readyz` and `/metrics`: sweeps are run, by beat's nudges or by a worker's own clock."""
    lag.beat()


@sweep(every=REGIONS_EVERY, at_start=True)
def measure_regions() -> None:
    """Queues, deliveries and runs of each region; one that is away does not keep the others from being looked at.
    At the start, too: whoever opens the console in the first seconds is not told that nobody works."""
    for region in settings.REGION_DATABASES:
        with apart(f"the figures of {region}", using=region):
            rollups.measure_region(region)


@sweep(every=CONTROL_EVERY)
def measure_control() -> None:
    rollups.measure_control()
    rollups.forget_old()
