"""Admin pages of projects, environments and members.
Depends on: services, directory."""
