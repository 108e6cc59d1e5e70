"""The document of a plan from another environment: a three-way merge with their common base."""
