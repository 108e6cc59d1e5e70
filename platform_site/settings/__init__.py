"""All settings, by subject. docs/reference/settings.md says what each variable means, in which unit."""

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
