"""The SQL of all migrations, in files for new databases.
Depends on: nothing.
Used from outside: schema_snapshot."""
