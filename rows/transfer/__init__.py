"""Import, export, backup, restore and copies of an environment's rows.
Depends on: write, migrate, query.
Used from outside: importer, exporter, backup, branch_copy."""
