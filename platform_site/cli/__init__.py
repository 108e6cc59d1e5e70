"""Base classes, argument types, help and errors of management commands.
Depends on: platform_site.http, platform_site.postgres.
Used from outside: base, argument_types, errors, help."""
