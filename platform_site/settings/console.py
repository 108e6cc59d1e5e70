from django.templatetags.static import static

from platform_site import env
from platform_site.settings.base import PLATFORM_MODE

CONSOLE_IDLE_SECONDS = env.integer("CONSOLE_IDLE_SECONDS", 3600, minimum=60)
CONSOLE_SESSION_SECONDS = env.integer("CONSOLE_SESSION_SECONDS", 12 * 3600, minimum=60)
SESSION_COOKIE_AGE = CONSOLE_SESSION_SECONDS
CONSOLE_REQUIRE_TOTP = env.boolean("CONSOLE_REQUIRE_TOTP", False)
UNFOLD = {
    "SITE_TITLE": "Backend platform",
    "SITE_HEADER": "Backend platform",
    "SITE_SUBHEADER": PLATFORM_MODE,
    "SITE_SYMBOL": "deployed_code",
    "SITE_FAVICONS": [
        {"rel": "icon", "type": "image/svg+xml", "href": lambda request: static("platform_site/favicon.svg")}
    ],
    "SITE_URL": "/docs",
    "SHOW_HISTORY": False,  # Django's log of the console; the audit log has more
    "SHOW_BACK_BUTTON": True,
    "DASHBOARD_CALLBACK": "platform_site.console.dashboard.dashboard",
    "COLORS": {
        "primary": {
            "50": "oklch(97.1% 0.014 166)",
            "100": "oklch(94.1% 0.042 166)",
            "200": "oklch(89.1% 0.082 164)",
            "300": "oklch(82.1% 0.122 164)",
            "400": "oklch(74.1% 0.142 163)",
            "500": "oklch(65.1% 0.138 163)",
            "600": "oklch(55.1% 0.118 163)",
            "700": "oklch(47.1% 0.098 164)",
            "800": "oklch(40.1% 0.081 165)",
            "900": "oklch(34.1% 0.066 166)",
            "950": "oklch(24.1% 0.046 168)",
        }
    },
    "STYLES": [lambda request: static("platform_site/console.css")],
    "ACCOUNT": {"navigation": "platform_site.console.sidebar.account_links"},
    "SIDEBAR": {
        "show_search": True,
        "command_search": True,
        "navigation": "platform_site.console.sidebar.navigation",
    },
    "COMMAND": {"search_models": False, "search_callback": "platform_site.console.search.search"},
}
