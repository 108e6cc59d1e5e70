"""The JavaScript client: its files, its types, and what it does in Deno against the real service."""
