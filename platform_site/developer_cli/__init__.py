"""The command `platform` for application developers. It calls the public HTTP API and nothing else.

Depends on: nothing of this repository and not on Django, so that a wheel of this package alone works.
Used from outside: `main.app`, the entry point of the wheel; `key_presets` by the console."""
