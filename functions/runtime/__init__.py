"""Runs tenant code in sandboxed Deno processes, kept warm in a pool.
Depends on: platform_site only; nothing here knows of rows or HTTP.
Used from outside: pool, process, programs, calls, launch."""
