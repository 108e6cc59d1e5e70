"""Admin pages of projects, and the base classes of pages about one region.

Depends on: services, directory.
Used from outside: base, texts.
"""
