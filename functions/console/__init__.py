"""Admin pages of functions and runs.

Depends on: deploy, inbound, runs, triggers.
Used from outside: admin.
"""
