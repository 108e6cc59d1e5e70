"""Where: projects, members, environments, regions, provisioning; resolves a caller's environment."""
