"""Slots for tasks whose duration a tenant controls, such as copies of large tables: others need the worker's threads.
What gets no slot waits for a periodic job, or for the end of another such task."""

from typing import Final

from platform_site.concurrency.fair_semaphore import FairSemaphore

slots: Final = FairSemaphore(8, per_owner=2, slow_after=30.0)
"""Of the 32 threads of a worker. Owners are projects."""
