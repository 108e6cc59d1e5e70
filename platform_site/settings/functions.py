"""Functions."""

from datetime import timedelta

from platform_site import env

FUNCTION_POOL_SIZE = env.integer("FUNCTION_POOL_SIZE", 16, minimum=1, maximum=1000)
"""Deno processes of one web or worker process, idle and running ones; about 40 MB each."""
FUNCTION_IDLE_SECONDS = env.number("FUNCTION_IDLE_SECONDS", 120, minimum=1)
FUNCTION_MAX_CALLS = env.integer("FUNCTION_MAX_CALLS", 10_000, minimum=1)
"""Then a process is retired."""
FUNCTION_POOL_WAIT = env.number("FUNCTION_POOL_WAIT", 2, minimum=0, maximum=600)
"""Seconds that a call waits for a place in a full pool."""
FUNCTION_LOAD_SECONDS = env.number("FUNCTION_LOAD_SECONDS", 10, minimum=0.1, maximum=600)
"""What the top level of a module may take when it is loaded."""
FUNCTION_WORKER_THREADS = env.integer("FUNCTION_WORKER_THREADS", 12, minimum=1, maximum=1000)
"""Queued runs of a region that one worker process executes at the same time."""
FUNCTION_LEASE = timedelta(seconds=env.number("FUNCTION_LEASE_SECONDS", 20, minimum=2, maximum=3600))
"""After so long without a sign of life from its process a run counts as lost. Renewed four times as often."""
FUNCTION_REQUIRED_SANDBOX_LAYERS = env.words("FUNCTION_REQUIRED_SANDBOX_LAYERS")
"""Walls (`functions.runtime.sandbox.SANDBOX_LAYERS`) without which no function runs on this host; `check` names those
it lacks."""
FUNCTION_JOB_SECONDS = env.number("FUNCTION_JOB_SECONDS", 2, minimum=0.1, maximum=3600)
