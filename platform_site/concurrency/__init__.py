"""A fair semaphore, requests on the event loop, a cache, and hints by which a request tells the server that it waits.
Depends on: nothing.
Used from outside: fair_semaphore, loop_requests, server_hints."""
