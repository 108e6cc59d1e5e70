import re
import shutil
import textwrap
from typing import Final

from django.core.management import ManagementUtility, get_commands, load_command_class

_OURS: Final = {
    "platform_site": "The service",
    "projects": "Projects",
    "accounts": "Accounts, users and their sign-in",
    "rows": "Schemas and rows",
    "webhooks": "Webhooks",
    "functions": "Functions",
}


class Overview(ManagementUtility):
    def main_help_text(self, commands_only: bool = False) -> str:
        if commands_only or self.settings_exception is not None:  # without settings our commands cannot be imported
            return super().main_help_text(commands_only)
        width = min(shutil.get_terminal_size().columns, 120)
        sections: dict[str, dict[str, str]] = {heading: {} for heading in _OURS.values()}
        others = []
        for name, app in sorted(get_commands().items()):
            heading = _OURS.get(app.split(".")[0])
            if heading is None:
                others.append(name)
            else:
                text = " ".join(load_command_class(app, name).help.split())
                sections[heading][name] = re.split(r"(?<=\.) ", text, maxsplit=1)[0]
        column = 4 + max(len(name) for section in sections.values() for name in section)
        lines = [f"`{self.prog_name} COMMAND --help` says how each is used."]
        for heading, section in sections.items():
            lines += ["", heading]
            for name, sentence in section.items():
                lines.append(_wrapped(sentence, f"  {name}".ljust(column), column, width))
        return "\n".join([*lines, "", "Django's own", _wrapped(", ".join(others), "  ", 2, width)])


def _wrapped(text: str, first: str, indent: int, width: int) -> str:
    return textwrap.fill(
        text,
        width,
        initial_indent=first,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
