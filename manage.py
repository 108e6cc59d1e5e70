#!/usr/bin/env python
"""The operator's commands: `python manage.py up` starts everything, `python manage.py help` lists the rest."""

import gc
import os
import sys

SIGINT, SIGPIPE = 130, 141
"""Exit codes of processes that these signals ended, as shells report them."""


def main() -> None:
    if sys.stdin is None:  # closed by the caller (`<&-`): a command that reads then finds an empty input
        sys.stdin = open(os.devnull, encoding="utf-8")
    if sys.argv[1:2] == ["up"]:
        # Before Django: it makes the data directory whose secrets the settings read.
        from platform_site.embedded import up

        sys.exit(up.main(sys.argv[2:], load, run))
    run(sys.argv)


def load() -> None:
    import django

    django.setup(set_prefix=False)
    from platform_site.server.application import application

    application.load()


def run(argv: list[str]) -> None:
    # Looking for garbage is a quarter of the time that imports and migrations take, and there is none.
    if argv[1:2] in (["serve"], ["work"]):
        gc.disable()  # they switch it on again when they begin
    else:
        gc.set_threshold(100_000, 10, 10)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "platform_site.settings")
    from django.core.exceptions import ImproperlyConfigured
    from django.db import Error

    from platform_site.cli.help import Overview

    try:
        Overview(argv).execute()
        sys.stdout.flush()
    except ImproperlyConfigured as error:  # a setting: the sentence names the variable
        if "--traceback" in argv:
            raise
        sys.exit(str(error))
    except (Error, UnicodeEncodeError) as error:
        from platform_site.cli import errors as command_errors

        sentence = None if "--traceback" in argv else command_errors.error_text(error)
        if sentence is None:
            raise
        sys.exit(sentence)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        if "--traceback" in sys.argv:
            raise
        sys.exit(SIGINT)
    except EOFError:  # Ctrl-D where something is asked for
        if "--traceback" in sys.argv:
            raise
        sys.exit("The input ended before the answer.")
    except BrokenPipeError:  # whoever read has seen enough: `list_projects | head`
        if "--traceback" in sys.argv:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left to be written at the end
        sys.exit(SIGPIPE)
