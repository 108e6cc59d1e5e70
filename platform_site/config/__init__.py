"""Environment configuration: schema, functions, webhooks, sign-in and origins of an environment as one document.

Above the apps whose settings it reads. Secrets are never part of a document.
"""
