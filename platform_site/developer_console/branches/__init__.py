"""The section Branches: an environment's branches, and merging one environment into another."""
