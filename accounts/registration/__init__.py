"""Sign-up, invitations, email links, password reset and the caller's own account.
Depends on: users, tokens, api.
Used from outside: sign_up, invitations, password_reset, own_account, email_outbox, pool_settings."""
