"""Signals from lower to higher layers, with their arguments, all by keyword. Each is sent in the transaction of the
change that it announces, so that what a receiver writes commits with it. To act afterwards, a receiver uses
`transaction.on_commit`."""

from typing import Final

from django.dispatch import Signal

# projects
environment_ready: Final = Signal()  # environment, since
"""In the control database: from this commit on the environment is reachable. Its rows may still name users who were
deleted since then; None: there are none."""
environment_branched: Final = Signal()  # source, target: EnvironmentRef, data: "none" | "full", using
environment_reset: Final = Signal()  # source, target: EnvironmentRef, data, actor (None: it is audited already), using
"""In the transaction of the region that replaces what a branch has by what its source has."""
environment_deleting: Final = Signal()  # environment_id, cluster: it is marked, and unreachable from now on
environment_deleted: Final = Signal()  # environment_id, cluster: its schema is dropped
"""Outside of a transaction, because an environment may have millions of rows: receivers delete them in their own
batches, and may be called again."""

# accounts: pool_id is None for a platform account
user_created: Final = Signal()  # user_id, pool_id
user_deleting: Final = Signal()  # user_id, pool_id: still exists, with memberships; a receiver may raise
user_deleted: Final = Signal()  # user_id, pool_id, actor of the audit entry

# rows
schema_migrated: Final = Signal()  # environment, version, operations: list[str], using
names_changing: Final = Signal()  # environment, old_names: OldNames, actor, beside
schema_changing: Final = Signal()  # environment, old: Schema, new: Schema, actor, beside
"""Both before a change or a dry run, outside of its transaction. Receivers return warnings (a list of `FieldError`)
about what still has the old names, or becomes invalid, and `actor` may read (None: everything). `beside` has the parts
of a configuration that change at the same time: what they replace or remove needs no warning."""
row_written: Final = Signal()  # environment, table, action, row_id, using, is_due

# functions
run_finished: Final = Signal()  # using
