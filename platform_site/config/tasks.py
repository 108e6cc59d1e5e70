from typing import Final

from django.conf import settings

from platform_site.background.periodic import log_failures, periodic_job
from platform_site.config import apply, stored_plans

HOUR: Final = 3600.0


@periodic_job(every=settings.JOB_SECONDS)
def settle_interrupted_applies() -> None:
    apply.settle_interrupted()


@periodic_job(every=HOUR)
def delete_old_plans() -> None:
    for cluster in settings.REGION_DATABASES:
        with log_failures(f"old plans in {cluster}", using=cluster):
            stored_plans.delete_old(cluster)
