"""A fair semaphore, and hints by which a request tells the server that it waits.

Depends on: nothing.
Used from outside: fair_semaphore, server_hints.
"""
