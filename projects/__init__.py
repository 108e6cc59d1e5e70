"""Projects, members, environments, regions and branches; finds the environment of a request.
Depends on: accounts, platform_site.
Used from outside: services, directory, provisioning."""
