"""The databases of the test run, for other processes."""

from django.conf import settings as django_settings
from django.db import connections

from platform_site.embedded.data_dir import region_variable
from tests.projects.conftest import REGIONS
from tests.projects.conftest import make_account as make_account


def database_variables() -> dict[str, str]:
    """The variables that lead another process to the databases of this test."""
    variables = {"default": "DATABASE_URL"} | {region: region_variable(region) for region in REGIONS}
    return {
        variable: django_settings.LAYOUT.postgres_url(str(connections[alias].settings_dict["NAME"]))
        for alias, variable in variables.items()
    }
