"""Shared by the commands of the apps. A secret goes to standard output, once; everything else to standard error."""

import getpass
import json
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError, CommandParser

from accounts.directory import environments as environment_directory
from accounts.models import User
from accounts.users import passwords
from platform_site.cli import base
from platform_site.http.fields import Serializer, failed
from platform_site.identity.callers import EnvironmentRef

ENVIRONMENT = "the environment: its id (env_…), or the project's id and its name (prj_…/production)"


class Command(base.Command):
    def create_parser(self, *args: Any, **kwargs: Any) -> CommandParser:
        parser = super().create_parser(*args, **kwargs)
        parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
        return parser

    def execute(self, *args: Any, **options: Any) -> Any:
        self.as_json = options["json"]
        return super().execute(*args, **options)

    def answer(self, values: dict[str, Any], *, sentence: str, secret: str | None = None) -> None:
        if self.as_json:
            self.stdout.write(json.dumps(values | ({"secret": secret} if secret else {})))
            return
        self.stderr.write(sentence, self.style.SUCCESS)
        if secret:
            self.stderr.write("It is shown only once and cannot be retrieved later:")
            self.stdout.write(secret)


def add_password_arguments(parser: ArgumentParser, *, optional: bool = True) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--password-stdin", action="store_true", help="read the password from standard input")
    source.add_argument("--password", help="the password itself (other users of this machine can see it in `ps`)")
    if optional:
        source.add_argument(
            "--no-password", action="store_true", help="set no password: the user cannot sign in with one"
        )


def read_password(options: dict[str, Any]) -> str | None:
    """The password of the options, or typed twice; None for `--no-password`. Raises CommandError."""
    if options.get("no_password"):
        return None
    if options["password"] is not None:
        return str(options["password"])
    if options["password_stdin"]:
        return sys.stdin.readline().rstrip("\r\n")
    if not sys.stdin.isatty():
        ways = ["--password-stdin", "--password", *(["--no-password"] if "no_password" in options else [])]
        raise CommandError(f"No terminal to ask for the password: pass {' or '.join(ways)}.")
    first = getpass.getpass("Password: ")
    if passwords.read(first) != passwords.read(getpass.getpass("Password (again): ")):
        raise CommandError("The two passwords differ.")
    return first


def validated_options(serializer: type[Serializer], options: dict[str, Any]) -> dict[str, Any]:
    """The options that have a field's name and were given, validated as in the API. Raises ValidationFailed."""
    names = serializer().get_fields()
    return validated(serializer, {name: options[name] for name in names if options.get(name) is not None})


def validated(serializer: type[Serializer], values: dict[str, Any]) -> dict[str, Any]:
    """`values`, validated as in the API. Raises ValidationFailed."""
    checked = serializer(data=values)
    if not checked.is_valid():
        raise failed(checked.errors)
    return dict(checked.validated_data)


def account(id_or_email: str) -> User:
    accounts = User.objects.in_pool(None)
    found = accounts.filter(pk=id_or_email).first() or User.objects.with_email(None, id_or_email).first()
    if found is None:
        raise CommandError(f"There is no platform account {id_or_email}.")
    return found


def add_pool_arguments(parser: ArgumentParser) -> None:
    owner = parser.add_mutually_exclusive_group(required=True)
    owner.add_argument("--environment", metavar="ENV", help=ENVIRONMENT)
    owner.add_argument("--platform", action="store_true", help="platform accounts instead of an environment's users")


def environment(options: dict[str, Any]) -> str | None:
    named: str | None = options["environment"]
    return None if named is None else environment_ref_named(named).environment_id


def environment_ref_named(text: str) -> EnvironmentRef:
    environment = environment_directory.directory().environment_ref_named(text)
    if environment is None:
        raise CommandError(f'There is no environment "{text}". `manage.py list_projects` lists all of them.')
    return environment


def pool(options: dict[str, Any]) -> str | None:
    """As `environment`. Raises CommandError for a preview branch too."""
    if options["environment"] is None:
        return None
    environment = environment_ref_named(options["environment"])
    if environment.is_branch:
        raise CommandError(f"This belongs to {environment.pool_id}, from which {environment.environment_id} branched.")
    return environment.pool_id
