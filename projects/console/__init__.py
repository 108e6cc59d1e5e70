"""Admin pages of projects, and links and questions for all of `/admin`.
Depends on: services, directory.
Used from outside: base."""
