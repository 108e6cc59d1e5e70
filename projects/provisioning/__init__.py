"""Creates, copies, suspends and drops the PostgreSQL schemas of environments.
Depends on: directory.
Used from outside: schemas, branching, deletion, suspension."""
