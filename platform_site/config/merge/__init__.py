"""The document of a plan from another environment: a three-way merge with the state at which the two parted."""
