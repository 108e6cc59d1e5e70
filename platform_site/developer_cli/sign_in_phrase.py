"""The phrase that terminal and page show during a sign-in in the browser."""

import hashlib


def phrase_of(challenge: str) -> str:
    digest = hashlib.sha256(challenge.encode()).hexdigest().upper()
    return f"{digest[:4]}-{digest[4:8]}"
