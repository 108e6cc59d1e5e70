"""HTTP endpoints of functions and runs.
Depends on: deploy, execution, runs.
Used from outside: views, serializers."""
