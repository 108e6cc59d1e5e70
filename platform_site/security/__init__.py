"""Encryption of stored secrets, and rotation of its keys.
Depends on: nothing.
Used from outside: keyring, rotation."""
