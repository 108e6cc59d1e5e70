"""The service's own settings, with the URLs of the benchmark on top."""

from platform_site.settings import *  # noqa: F403

ROOT_URLCONF = "tests.benchmarks.urls"
