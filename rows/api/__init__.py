"""HTTP endpoints of rows and of the schema document.
Depends on: query, write, migrate.
Used from outside: row_views, schema_views."""
