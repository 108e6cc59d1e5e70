"""The API description: OpenAPI 3.1, with an example for each operation.
Depends on: platform_site.http.
Used from outside: description."""
