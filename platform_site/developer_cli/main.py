import sys
from typing import Any

import typer
from typer._click.exceptions import UsageError  # Typer does not export it
from typer.core import TyperGroup, TyperOption

from platform_site.developer_cli import output, store
from platform_site.developer_cli.commands import (
    account,
    backend,
    branch,
    dev,
    functions,
    keys,
    logs,
    merge,
    table_types,
    users,
    webhooks,
)
from platform_site.developer_cli.failures import Exit, Failure


class _Commands(TyperGroup):
    """Each command accepts `--json`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for command in self.commands.values():
            if not isinstance(command, TyperGroup):
                command.params.append(
                    TyperOption(
                        param_decls=["--json"],
                        is_flag=True,
                        is_eager=True,
                        expose_value=False,
                        callback=lambda _context, _option, given: output.use_json() if given else None,
                        help="Print one JSON value, also for errors.",
                    )
                )

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return list(super().parse_args(ctx, _command_first(args)))


class _Group(_Commands):
    """Ends a command with its error's exit code, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        output.accept_every_character()
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except Failure as error:
            failure = error
        except UsageError as error:
            if "--json" not in sys.argv:
                raise
            output.use_json()
            failure = Failure(Exit.USAGE, "usage", error.format_message())
        except OSError as error:
            message = f"{error.filename}: {error.strerror}." if error.filename else f"{error}."
            failure = Failure(Exit.USAGE, "file_error", message)
        except (KeyboardInterrupt, typer.Abort):
            if sys.stderr.isatty():
                print(file=sys.stderr)  # behind the terminal's ^C
            failure = Failure(Exit.INTERRUPTED, "interrupted", "Interrupted.")
        output.failure(failure)
        raise typer.Exit(failure.exit_code)


def _command_first(args: list[str]) -> list[str]:
    """With the options of a command behind it: `platform -e production plan` is `platform plan -e production`."""
    before: list[str] = []
    rest = args
    while rest and rest[0].startswith(("-e", "--environment", "--json", "--url")):
        size = 2 if rest[0] in ("-e", "--environment", "--url") else 1
        before, rest = [*before, *rest[:size]], rest[size:]
    end = rest.index("--") if "--" in rest else len(rest)
    return [*rest[:end], *before, *rest[end:]] if rest else args


app = typer.Typer(
    name="platform",
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Develop an application on the backend platform. Begin with `platform login`, then `platform init NAME` for a "
    "new project or `platform link PROJECT` for an existing one.",
)


def _version(value: bool) -> None:
    if value:
        print(store.version())
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


app.command()(account.login)
app.command()(account.logout)
app.command()(account.status)
app.command()(account.init)
app.command()(account.link)
app.command("open")(account.open_page)
app.command()(backend.pull)
app.command()(backend.plan)
app.command()(backend.push)
app.command()(merge.merge)
app.command()(merge.revert)
app.command()(dev.dev)
app.command()(table_types.types)
app.command()(functions.invoke)
app.add_typer(keys.keys, name="keys", cls=_Commands)
app.add_typer(users.users, name="users", cls=_Commands)
app.add_typer(functions.functions, name="functions", cls=_Commands)
app.add_typer(functions.secrets, name="secrets", cls=_Commands)
app.add_typer(webhooks.webhooks, name="webhooks", cls=_Commands)
app.command()(logs.logs)
app.add_typer(branch.branch, name="branch", cls=_Commands)
