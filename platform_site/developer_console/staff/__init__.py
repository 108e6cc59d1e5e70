"""Staff: access to an environment that its project has granted. Depends on the session and the API."""
