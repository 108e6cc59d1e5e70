import re
from collections.abc import Collection
from typing import Final

from accounts.keys.publishable_key_exposure import Exposure
from functions.errors import NoSuchFunction
from functions.models import Function
from platform_site.http.errors import first_or
from platform_site.identity.callers import EnvironmentRef

NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}", re.ASCII)
NAME_RULE: Final = "A function's name is 1 to 63 of a-z, 0-9, _ and -, beginning with a letter."


def function_of(environment: EnvironmentRef, name: str, *, lock: bool = False) -> Function:
    """Raises NoSuchFunction."""
    if not NAME.fullmatch(name):
        raise NoSuchFunction
    found = Function.objects.of(environment).filter(name=name)
    return first_or(found.select_for_update() if lock else found, NoSuchFunction)


def count_functions(environment: EnvironmentRef) -> int:
    return Function.objects.of(environment).count()


def public_functions(environment: EnvironmentRef) -> Exposure:
    found = Function.objects.of(environment).filter(invoke="public")
    return Exposure(functions=[*found.values_list("name", flat=True)])


def existing_functions(using: str, pairs: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    """Of pairs of environment id and name."""
    functions = Function.objects.using(using).filter(
        environment_id__in={environment_id for environment_id, _ in pairs}, name__in={name for _, name in pairs}
    )
    found = set(functions.values_list("environment_id", "name"))
    return {pair for pair in pairs if pair in found}
