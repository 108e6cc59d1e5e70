"""The bare views by Django's own WSGI handler."""

from django.core.wsgi import get_wsgi_application

application = get_wsgi_application()
