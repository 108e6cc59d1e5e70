"""Admin pages of schemas and rows.

Depends on: query, migrate, rules, transfer.
Used from outside: row_browser.
"""
