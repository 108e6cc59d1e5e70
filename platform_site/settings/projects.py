from platform_site import env

JOB_SECONDS = env.number("JOB_SECONDS", 30, minimum=1, maximum=3600)
ORPHAN_GRACE_SECONDS = env.integer("ORPHAN_GRACE_SECONDS", 60, minimum=0)
DELETION_GRACE_SECONDS = env.integer("DELETION_GRACE_SECONDS", 10, minimum=0)
BRANCH_AT_ONCE_BYTES = env.integer("BRANCH_AT_ONCE_BYTES", 4 * 1024 * 1024, minimum=0)
BRANCH_GIVE_UP_SECONDS = env.integer("BRANCH_GIVE_UP_SECONDS", 6 * 3600, minimum=1)
FAILPOINT = env.text("FAILPOINT", "")

OUTBOUND_ALLOWED_NETWORKS = env.words("OUTBOUND_ALLOWED_NETWORKS")
