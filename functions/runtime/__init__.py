"""The runtime: tenants' code in Deno processes behind walls, kept warm in a pool.

`jail` puts a process behind the walls of the operating system, `runner.ts` is the program inside that loads and calls
the tenant's code, `process` speaks with one such program, `pool` keeps the warm ones. Nothing here knows of Django's
models: what code may do to the outside is a `Host` that the caller brings along.
"""
