from platform_site.background.periodic import periodic_job_per_region
from platform_site.request_log import partitions


@periodic_job_per_region(every=3600, with_control=True)
def maintain_partitions(using: str) -> None:
    partitions.create(using)
    partitions.purge(using)
