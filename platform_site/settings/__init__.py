"""All settings, by subject. Defaults use the embedded services (`platform_site.embedded.data_dir`); production:
docs/how-to/deployment.md."""

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
