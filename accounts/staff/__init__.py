"""Sign-in of platform staff to the admin: roles, second factor, sessions.
Depends on: users, registration.
Used from outside: roles, second_factor, sessions."""
