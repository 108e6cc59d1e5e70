"""What `manage.py check` says of the runtime: whether there is one, and which walls this host does not give."""

import subprocess
from typing import Any, Final

from django.conf import settings
from django.core.checks import CheckMessage, Error, Info, Tags, register

from functions.runtime import jail, launch
from functions.runtime.errors import StartFailed

_HINTS: Final = {
    "namespaces": "Only Deno's own permissions keep functions off the network then. Run web and workers as root, or"
    " permit user namespaces (user.max_user_namespaces, kernel.unprivileged_userns_clone; a container's seccomp"
    " profile).",
    "uid": "Functions run as the platform's own user then. Run web and workers as root: each environment gets its own.",
    "landlock": "Only Deno's own permissions keep functions off the files then. It takes Linux 5.13 or later with"
    ' "landlock" among the security modules (kernel parameter lsm=).',
    "no_new_privileges": "Functions might gain rights through set-uid programs then. It takes Linux 3.5 or later.",
    "limits": "Nothing but the memory watch bounds what a function takes then.",
}


@register(Tags.security)
def check_runtime(**_: Any) -> list[CheckMessage]:
    """Deno is installed, and behind which walls it would run here. A run's `walls` say behind which it did.

    A missing wall is an error where FUNCTION_REQUIRED_WALLS names it (functions then do not run at all) and a notice
    elsewhere: what is missing is the host's matter, and a check that fails for it would fail on every laptop.
    """
    required = set(settings.FUNCTION_REQUIRED_WALLS)
    if unknown := required - set(jail.WALLS):
        message = f"FUNCTION_REQUIRED_WALLS names {', '.join(sorted(unknown))}; there are {', '.join(jail.WALLS)}."
        return [Error(message, id="functions.E003")]
    try:
        launch.deno()
        active = launch.walls_of_this_host()
    except StartFailed as error:
        return [Error(str(error), hint="pip install deno", id="functions.E001")]
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return [Error(f"No process can be started for functions: {error}", id="functions.E002")]
    found: list[CheckMessage] = []
    for wall in jail.WALLS:
        if wall not in active:
            kind, name = (Error, "functions.E004") if wall in required else (Info, "functions.I001")
            found.append(kind(f"Functions run without the wall {wall!r} on this host.", hint=_HINTS[wall], id=name))
    return found
