"""HTTP endpoints of projects and environments, and the authentication of every API request.
Depends on: services, directory.
Used from outside: views, authentication."""
