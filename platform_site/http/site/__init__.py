"""URLs beside the API: pages for people, the JavaScript client, and the health checks.
Depends on: platform_site.http.
Used from outside: pages, client_script, health."""
