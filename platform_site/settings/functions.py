from datetime import timedelta

from platform_site import env

FUNCTION_POOL_SIZE = env.integer("FUNCTION_POOL_SIZE", 16, minimum=1, maximum=1000)
"""Deno processes per web or worker process; about 40 MB each."""
FUNCTION_IDLE_SECONDS = env.number("FUNCTION_IDLE_SECONDS", 120, minimum=1)
FUNCTION_MAX_CALLS = env.integer("FUNCTION_MAX_CALLS", 10_000, minimum=1)
"""Calls after which a process is replaced."""
FUNCTION_POOL_WAIT = env.number("FUNCTION_POOL_WAIT", 2, minimum=0, maximum=600)
"""Seconds that a call waits for a full pool."""
FUNCTION_LOAD_SECONDS = env.number("FUNCTION_LOAD_SECONDS", 10, minimum=0.1, maximum=600)
"""For a module's top level."""
FUNCTION_WORKER_THREADS = env.integer("FUNCTION_WORKER_THREADS", 12, minimum=1, maximum=1000)
"""Queued runs of a region per worker process."""
FUNCTION_LEASE = timedelta(seconds=env.number("FUNCTION_LEASE_SECONDS", 20, minimum=2, maximum=3600))
"""A run without a renewal for this time is lost. Renewed four times as often."""
FUNCTION_REQUIRED_SANDBOX_LAYERS = env.words("FUNCTION_REQUIRED_SANDBOX_LAYERS")
"""Layers (`functions.runtime.sandbox.SANDBOX_LAYERS`) without which no function runs; `check` names missing ones."""
FUNCTION_JOB_SECONDS = env.number("FUNCTION_JOB_SECONDS", 2, minimum=0.1, maximum=3600)
