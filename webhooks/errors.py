from platform_site.http.errors import NotFound


class NoSuchWebhook(NotFound):
    message = "There is no such webhook in this environment."
