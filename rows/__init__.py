"""Empty until its issue lands."""
