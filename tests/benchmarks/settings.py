"""The service's own settings, with the benchmark's addresses on top."""

from platform_site.settings import *  # noqa: F403

ROOT_URLCONF = "tests.benchmarks.urls"
