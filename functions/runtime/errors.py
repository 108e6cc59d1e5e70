from typing import Literal

Reason = Literal[
    "user_error", "timeout", "memory", "crashed", "protocol", "output_too_large", "cancelled", "platform", "caller_gone"
]


class RuntimeFailed(RuntimeError):
    """Never raised itself."""


class StartFailed(RuntimeFailed):
    """Deno did not start, on this machine or for this memory limit. A platform fault."""


class LoadFailed(RuntimeFailed):
    """The module could not be loaded: its syntax, its imports or its top level. The tenant's fault; see the message."""


class ProcessGone(RuntimeFailed):
    """The process ended before it took the call; the call may be repeated on another one."""
