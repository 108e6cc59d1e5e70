"""The web server: reads requests under deadlines, runs them on the event loop or in threads.
Depends on: platform_site base packages.
Used from outside: application, worker, serve."""
