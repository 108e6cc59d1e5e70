"""Descriptions of an environment's tables for the tools of developers: TypeScript types, OpenAPI.
Depends on: query, rules, schema, write.
Used from outside: generated, openapi, typescript."""
