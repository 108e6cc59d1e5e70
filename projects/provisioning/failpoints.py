"""Places in the code at which a test may end the process, to see what a crash there leaves behind. `settings.FAILPOINT`
names one; empty in every real process, so that reaching one costs a comparison."""

import os
import signal

from django.conf import settings


def reach(name: str) -> None:
    """Die here, as by `kill -9`, if this is the failpoint that the settings name."""
    if settings.FAILPOINT == name:
        os.kill(os.getpid(), signal.SIGKILL)
