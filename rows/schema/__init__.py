"""The schema document: parser, model, types and values. Pure computation.
Depends on: platform_site only.
Used from outside: model, parser, values, types, identifiers."""
