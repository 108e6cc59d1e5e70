"""The kernel: what every app stands on and nothing of any app. It imports no app (import-linter holds it to that)."""
