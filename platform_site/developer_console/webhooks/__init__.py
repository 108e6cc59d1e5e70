"""Webhooks: the list, one webhook's settings, and its deliveries. Depends on the frame and the API."""
