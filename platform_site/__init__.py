"""Settings, URLs, the server, the embedded services, and the base packages under every app.
Depends on: nothing: `manage.py up` starts without Django.
Used from outside: settings, urls, celery."""
