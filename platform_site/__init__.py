"""Settings, the roof (`urls`), the server bridge, Celery, the embedded services, and `api`, the kernel beneath.

Importing this package imports nothing else: `manage.py up` must start without Django.
"""
