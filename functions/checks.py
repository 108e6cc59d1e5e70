import subprocess
from typing import Any, Final

from django.conf import settings
from django.core.checks import CheckMessage, Error, Info, Tags, register

from functions.runtime import launch, sandbox
from functions.runtime.errors import StartFailed
from platform_site.checks import READABLE

_HINTS: Final = {
    "namespaces": "Only Deno's own permissions block the network. Run web and workers as root, or"
    " permit user namespaces (user.max_user_namespaces, kernel.unprivileged_userns_clone; a container's seccomp"
    " profile).",
    "uid": "Functions run as the platform's own user. Run web and workers as root: each environment gets its own user.",
    "landlock": "Only Deno's own permissions block files. The layer needs Linux 5.13 or later with"
    ' "landlock" among the security modules (kernel parameter lsm=).',
    "no_new_privileges": "Functions might gain rights through set-uid programs. The layer needs Linux 3.5 or later.",
    "limits": "Only the memory watch limits a function's resources.",
}


@register(Tags.security, READABLE)
def check_required_layers(**_: Any) -> list[CheckMessage]:
    unknown = sorted(set(settings.FUNCTION_REQUIRED_SANDBOX_LAYERS) - set(sandbox.SANDBOX_LAYERS))
    if not unknown:
        return []
    known = ", ".join(sandbox.SANDBOX_LAYERS)
    message = f"FUNCTION_REQUIRED_SANDBOX_LAYERS: unknown layer {', '.join(unknown)}. Known: {known}."
    return [Error(message, id="functions.E003")]


@register(Tags.security)
def check_runtime(**_: Any) -> list[CheckMessage]:
    required = set(settings.FUNCTION_REQUIRED_SANDBOX_LAYERS)
    try:
        launch.deno()
        active = launch.sandbox_layers_of_this_host()
    except StartFailed as error:
        return [Error(str(error), hint="pip install deno", id="functions.E001")]
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return [Error(f"No process can be started for functions: {error}", id="functions.E002")]
    found: list[CheckMessage] = []
    for layer in sandbox.SANDBOX_LAYERS:
        if layer not in active:
            kind, name = (Error, "functions.E004") if layer in required else (Info, "functions.I001")
            found.append(kind(f"Functions run without the layer {layer!r} on this host.", hint=_HINTS[layer], id=name))
    return found
