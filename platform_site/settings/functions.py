from datetime import timedelta

from platform_site import env

FUNCTION_POOL_SIZE = env.integer("FUNCTION_POOL_SIZE", 16, minimum=1, maximum=1000)
FUNCTION_IDLE_SECONDS = env.number("FUNCTION_IDLE_SECONDS", 120, minimum=1)
FUNCTION_MAX_CALLS = env.integer("FUNCTION_MAX_CALLS", 10_000, minimum=1)
FUNCTION_POOL_WAIT = env.number("FUNCTION_POOL_WAIT", 2, minimum=0, maximum=600)
FUNCTION_LOAD_SECONDS = env.number("FUNCTION_LOAD_SECONDS", 10, minimum=0.1, maximum=600)
FUNCTION_WORKER_THREADS = env.integer("FUNCTION_WORKER_THREADS", 12, minimum=1, maximum=1000)
FUNCTION_LEASE = timedelta(seconds=env.number("FUNCTION_LEASE_SECONDS", 20, minimum=2, maximum=3600))
FUNCTION_REQUIRED_SANDBOX_LAYERS = env.words("FUNCTION_REQUIRED_SANDBOX_LAYERS")
FUNCTION_JOB_SECONDS = env.number("FUNCTION_JOB_SECONDS", 2, minimum=0.1, maximum=3600)
