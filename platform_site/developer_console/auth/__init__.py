"""Auth: users, invitations, sign-up and identity providers of the environment. Depends on the frame and the API."""
