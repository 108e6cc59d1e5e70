REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["projects.api.authentication.CallerAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": [],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],  # for the description
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_SCHEMA_CLASS": "platform_site.http.openapi.description.ApiSchema",
    "DEFAULT_METADATA_CLASS": None,
    "UNAUTHENTICATED_USER": None,
    "UNAUTHENTICATED_TOKEN": None,
}

SPECTACULAR_SETTINGS = {
    "OAS_VERSION": "3.1.0",
    "TITLE": "Backend platform",
    "DESCRIPTION": "Projects, sign-in, rows under rules, signed webhooks and functions, over HTTP with JSON bodies.\n\n"
    "Follow the [quick start](/docs/guides/tutorials/quick-start), or look up an "
    "[error code](/docs/guides/reference/errors). To try an endpoint here, paste a server key (`sk_…`) or an access "
    "token under *Authorize*. An account names its environment in the header `X-Environment`.",
    # In the order in which a new project needs them.
    "TAGS": [
        {"name": "projects", "description": "Projects, environments, preview branches, members"},
        {"name": "auth", "description": "Signing in and up, sessions, one's own account"},
        {"name": "keys", "description": "Server keys"},
        {"name": "schema", "description": "Tables and rules, as one document"},
        {"name": "rows", "description": "Reading and writing rows"},
        {"name": "webhooks", "description": "Events, signed and delivered"},
        {"name": "functions", "description": "Code that runs as its caller"},
        {"name": "users", "description": "An application's users"},
        {"name": "invitations", "description": "Users who are invited by email"},
        {"name": "identity-providers", "description": "Sign-in by other providers"},
        {"name": "redirect-uris", "description": "Where a sign-in by another provider may return to"},
        {"name": "limits", "description": "What the plan allows, and what is used"},
        {"name": "well-known", "description": "Keys that verify access tokens"},
    ],
    "VERSION": "1",
    "SERVERS": [{"url": "/"}],
    "SCHEMA_PATH_PREFIX": "/v1",
    "SERVE_INCLUDE_SCHEMA": False,
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
    "SORT_OPERATION_PARAMETERS": False,
    "GET_LIB_DOC_EXCLUDES": "platform_site.http.openapi.description.generic_view_classes",
    "POSTPROCESSING_HOOKS": [
        "platform_site.http.openapi.description.add_components",
        "platform_site.http.openapi.description.add_examples",
    ],
}
