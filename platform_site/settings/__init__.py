"""All settings, one module per subject. A fresh clone runs with no variable set; production sets those in
docs/how-to/deployment.md. What is unset falls back to the embedded services of the data dir
(`platform_site.embedded.data_dir`)."""

from platform_site.settings.base import *
from platform_site.settings.console import *
from platform_site.settings.databases import *
from platform_site.settings.functions import *
from platform_site.settings.http import *
from platform_site.settings.logs import *
from platform_site.settings.projects import *
from platform_site.settings.redis import *
from platform_site.settings.rest_api import *
from platform_site.settings.sign_in import *
from platform_site.settings.webhooks import *
