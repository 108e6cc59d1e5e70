#!/usr/bin/env python
"""The operator's door: `python manage.py up` starts everything, `python manage.py help` lists the rest."""

import os
import sys

if __name__ == "__main__":
    if sys.argv[1:2] == ["up"]:
        # Before Django: it makes the data dir whose secrets the settings read.
        from platform_site.services.up import main

        sys.exit(main(sys.argv[2:]))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "platform_site.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
