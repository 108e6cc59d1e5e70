from datetime import timedelta
from typing import Any, Final

from django.db.models.functions import Now

from platform_site.postgres.statements import execute_in_batches
from platform_site.request_log import partitions
from platform_site.request_log.models import OmittedRequests

BATCH: Final = 5_000

_DELETE_OF_ENVIRONMENT: Final = """
DELETE FROM request_log_entry WHERE environment_id = %(environment_id)s AND at >= coalesce(
    (SELECT at FROM request_log_entry WHERE environment_id = %(environment_id)s
      ORDER BY at DESC, id DESC OFFSET %(batch)s - 1 LIMIT 1), '-infinity')
"""


def purge(using: str) -> None:
    partitions.drop_old(using)
    oldest = Now() - timedelta(days=max(partitions.KEEP_DAYS))
    OmittedRequests.objects.using(using).filter(minute__lt=oldest).delete()


def forget_environment(*, environment_id: str, cluster: str, **_: Any) -> None:
    """In batches; idempotent."""
    execute_in_batches(cluster, _DELETE_OF_ENVIRONMENT, {"environment_id": environment_id}, batch=BATCH)
    OmittedRequests.objects.using(cluster).filter(environment_id=environment_id).delete()
