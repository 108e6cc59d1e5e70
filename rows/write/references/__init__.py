"""Rows that name a deleted row or user: the referential actions of the schema, and deletions of users to complete."""
