from collections.abc import Collection, Mapping

from django.db.models.functions import Now

from functions.execution.executor import SECRET_PURPOSE
from functions.models import Function, Secret
from platform_site.security import keyring


def set_values(function: Function, secrets: Mapping[str, str | None], using: str) -> None:
    for name, value in secrets.items():
        if value is None:
            Secret.objects.using(using).filter(function=function, name=name).delete()
        else:
            sealed = keyring.seal(value.encode(), purpose=SECRET_PURPOSE)
            Secret.objects.using(using).update_or_create(
                function=function, name=name, defaults={"sealed_value": sealed, "updated_at": Now()}
            )


def set_names(function: Function, names: Collection[str], using: str) -> None:
    known = Secret.objects.using(using).filter(function=function)
    known.exclude(name__in=names).delete()
    new = set(names).difference(known.values_list("name", flat=True))
    Secret.objects.using(using).bulk_create(
        Secret(function=function, name=name, sealed_value=None) for name in sorted(new)
    )
