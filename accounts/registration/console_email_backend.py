"""The email backend of development: prints text and links of emails if no mail server is configured."""

from django.core.mail.backends.console import EmailBackend as ConsoleBackend
from django.core.mail.message import EmailMessage


class EmailBackend(ConsoleBackend):
    def write_message(self, message: EmailMessage) -> None:
        lines = (line for line in str(message.body).splitlines() if line.strip())
        self.stream.write(f"email to {', '.join(message.to)}: {message.subject}\n")
        self.stream.write("".join(f"    {line}\n" for line in lines))
