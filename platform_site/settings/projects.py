"""Projects, preview branches and outgoing calls."""

from platform_site import env

JOB_SECONDS = env.number("JOB_SECONDS", 30, minimum=1, maximum=3600)
"""How often a worker looks for what a crash left behind (`platform_site.background.periodic`)."""
ORPHAN_GRACE_SECONDS = env.integer("ORPHAN_GRACE_SECONDS", 60, minimum=0)
"""A PostgreSQL schema that no environment owns, or a row that names one, is removed when it is older than this."""
DELETION_GRACE_SECONDS = env.integer("DELETION_GRACE_SECONDS", 10, minimum=0)
"""The periodic job takes over a deletion that is older than this; until then the request or a worker does it."""
BRANCH_AT_ONCE_BYTES = env.integer("BRANCH_AT_ONCE_BYTES", 4 * 1024 * 1024, minimum=0)
"""Up to so many bytes of rows a preview branch is filled before its creation is answered, more by a worker."""
BRANCH_GIVE_UP_SECONDS = env.integer("BRANCH_GIVE_UP_SECONDS", 6 * 3600, minimum=1)
"""A branch that could not be filled for that long is called failed."""
FAILPOINT = env.text("FAILPOINT", "")
"""Where tests of crashes end the process (`projects.provisioning.failpoints`). Never set otherwise."""

# ── Outgoing calls ────────────────────────────────────────────────────────────────────────────────────────────────────
OUTBOUND_ALLOWED_NETWORKS = env.words("OUTBOUND_ALLOWED_NETWORKS")
"""Networks that webhooks and functions may call though they are not public, such as `127.0.0.0/8` for development."""
