"""What is taken for a secret in a URL or a text, and what is not."""

import pytest

from platform_site.config.credentials import first_line_with_secret, masked


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://example.com/hooks/orders", "https://example.com/hooks/orders"),
        ("https://example.com", "https://example.com"),
        ("https://example.com:8443/a?", "https://example.com:8443/a"),
        ("https://hooks.slack.com/services/T0/B0/x", "https://hooks.slack.com/$secret:path"),
        ("https://discord.com/api/webhooks/1/a", "https://discord.com/$secret:path"),
        ("https://example.com/in/inb0123456789abcdef/x", "https://example.com/$secret:path"),
        ("https://example.com/0190a3f0-6b1c-7cc0-8000-1234567890ab", "https://example.com/$secret:path"),
        ("https://api.telegram.org/bot110201543:AAHdqTcvCH1vGW/sendMessage", "https://api.telegram.org/$secret:path"),
        ("https://hook.eu1.make.com/abcdefghijklmnopqrstuvwxyz", "https://hook.eu1.make.com/$secret:path"),
        (
            "https://example.com/webhooks/of-all-orders-and-returns",
            "https://example.com/webhooks/of-all-orders-and-returns",
        ),
        ("https://example.com/a?key=k&on", "https://example.com/a?key=$secret:key&$secret:query"),
        ("https://example.com/a?token={token}", "https://example.com/a?token={token}"),
        ("https://user:pass@example.com/a", "https://$secret:userinfo@example.com/a"),
        ("https://[broken", "$secret:url"),
    ],
)
def test_urls(url: str, shown: str) -> None:
    assert masked(url) == shown
    assert masked(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "sk_live_0123456789abcdef",
        "ghp_0123456789abcdef0123456789abcdef0123",
        "xoxb-0123456789-abcdef",
        "AKIAIOSFODNN7EXAMPLE",
        "-----BEGIN RSA PRIVATE KEY-----",
        "postgres://app:hunter22@db.example.com/app",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.x",
    ],
)
def test_known_forms_of_secrets_are_found_with_their_line(text: str) -> None:
    assert first_line_with_secret(f"\nconst key = '{text}';\n") == 2


@pytest.mark.parametrize(
    "text", ["", "ctx.secrets.API_TOKEN", "https://example.com:8080/a@b", "task_0123", "`${u}:${p}@`"]
)
def test_other_texts_are_not(text: str) -> None:
    assert first_line_with_secret(text) is None
