"""Admin pages of users, sessions, keys, providers and emails, and the base classes of all admin pages.
Depends on: users, oauth, staff.
Used from outside: base."""
