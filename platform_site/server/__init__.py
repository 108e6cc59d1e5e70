"""The web server between Granian and Django: reads requests under deadlines, runs them in threads.

Depends on: platform_site base packages.
Used from outside: rsgi_app, worker, serve.
"""
