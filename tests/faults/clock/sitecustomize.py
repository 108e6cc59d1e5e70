"""Python under libfaketime with a right monotonic clock (`harm.shifted`): found first on PYTHONPATH, imported at start.

`time.sleep` waits for a moment of that clock. libfaketime 0.9.10 takes every such moment for one of the shifted clock, finds
it past and answers EINVAL. `select` waits for a duration, which it leaves alone.
"""

import select
import time


def sleep(seconds: float) -> None:
    select.select((), (), (), seconds)


time.sleep = sleep
