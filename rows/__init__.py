"""Tables of an environment: schema documents, row-level rules, queries, writes, imports and the outbox.
Depends on: projects, accounts, platform_site.
Used from outside: query, write, migrate, outbox, transfer."""
