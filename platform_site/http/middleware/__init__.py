"""The middleware of the service: what handles a request first and its response last.
Depends on: platform_site.http, platform_site.observability.
Used from outside: api; settings name the others."""
