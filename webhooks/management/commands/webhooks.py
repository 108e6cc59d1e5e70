import re
import signal
import threading
from argparse import ArgumentParser, ArgumentTypeError
from datetime import UTC, datetime
from typing import Any, Final

from django.core.management.base import CommandError
from django.db import Error, connections
from django.db.models import Exists, OuterRef

from accounts import audit
from accounts.management.terminal import ENVIRONMENT, environment_ref_named
from platform_site import outbound
from platform_site.cli import base
from platform_site.identity.callers import EnvironmentRef
from rows.outbox import event_types
from webhooks.cli_listener import Listener, ListenerEnded
from webhooks.delivery.queue import AttemptOutcome, ClaimedDelivery
from webhooks.models import Delivery, Webhook
from webhooks.subscriptions import service as webhook_service

_EXAMPLES: Final = """
examples:
  manage.py webhooks list env_01k…
  manage.py webhooks replay env_01k… wh_01k… --since 2026-01-31T12:00Z    send again what did not arrive since then
  manage.py webhooks replay env_01k… wh_01k… --delivery dlv_01k…          send this one again, arrived or not
  manage.py webhooks listen env_01k… --forward http://127.0.0.1:3000/hook  until Ctrl-C; nothing of it stays
"""
POLL_SECONDS: Final = 0.25
_CONTROL: Final = re.compile(r"[\x7f-\x9f]")


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError("must be a date and a time, such as 2026-01-31T12:00Z") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


class Command(base.Command):
    help = "List the webhooks of an environment, send their deliveries again, or forward its events to a local server."
    epilog = _EXAMPLES

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", metavar="list|replay|listen", required=True)
        listing = verbs.add_parser("list", help="each webhook with its success rate")
        listing.add_argument("environment", metavar="ENV", help=ENVIRONMENT)
        replay = verbs.add_parser("replay", help="send again, with the old ids and bodies and a new schedule")
        replay.add_argument("environment", metavar="ENV", help=ENVIRONMENT)
        replay.add_argument("webhook", metavar="WEBHOOK", help="its id (wh_…)")
        which = replay.add_mutually_exclusive_group(required=True)
        which.add_argument(
            "--since", type=_moment, metavar="TIME", help="deliveries exhausted or dropped since then (UTC by default)"
        )
        which.add_argument("--delivery", metavar="ID", help="this delivery (dlv_…)")
        listening = verbs.add_parser("listen", help="forward events to a local URL until interrupted")
        listening.add_argument("environment", metavar="ENV", help=ENVIRONMENT)
        listening.add_argument("--forward", required=True, metavar="URL", help="such as http://127.0.0.1:3000/hook")
        listening.add_argument(
            "--events", default="*", metavar="LIST", help="patterns with commas: tasks.insert,lists.* (default: all)"
        )
        listening.add_argument("--body", action="store_true", help="also print each request")

    def handle(self, *args: Any, **options: Any) -> None:
        environment = environment_ref_named(options["environment"])
        if options["verb"] == "list":
            self._list(environment)
        elif options["verb"] == "listen":
            self._listen(environment, options)
        elif options["delivery"]:
            webhook_service.redeliver(environment, options["webhook"], options["delivery"], actor=audit.SYSTEM)
            self.stdout.write("1 delivery is sent again.")
        else:
            recovery = webhook_service.recover(environment, options["webhook"], options["since"], actor=audit.SYSTEM)
            verb = "delivery is" if recovery.count == 1 else "deliveries are"
            more = "" if recovery.is_all else ", and more follow"
            self.stdout.write(f"{recovery.count} {verb} sent again{more}.")

    def _list(self, environment: EnvironmentRef) -> None:
        live = Webhook.objects.of(environment).with_health()
        tried = Delivery.objects.filter(webhook=OuterRef("pk"), last_attempt_at__isnull=False)
        found = list(live.annotate(was_tried=Exists(tried)).order_by("-created_at", "-id"))
        if not found:
            self.say("There are no webhooks yet.")
        for webhook in found:
            state = "enabled" if webhook.enabled else f"disabled ({webhook.disabled_reason})"
            # The success rate is 100 % before the first attempt, which would look healthy.
            rate = f"{webhook.success_rate:.0%}" if webhook.was_tried else "untried"  # type: ignore[attr-defined]
            self.stdout.write(f"{webhook.pk}  {rate:>7}  {state}  {webhook.url}  {', '.join(webhook.events)}")

    def _listen(self, environment: EnvironmentRef, options: dict[str, Any]) -> None:
        try:
            url = outbound.parse_url(options["forward"]).url
        except outbound.BadUrl as error:
            raise CommandError(f"--forward: {error}") from None
        patterns = [pattern.strip() for pattern in options["events"].split(",")]
        for pattern in patterns:
            if (problem := event_types.problem_with(pattern)) is not None:
                raise CommandError(f'--events: "{pattern}" {problem}.')
        stopped = _stop_requested()
        with Listener(environment, url, patterns) as listener:
            self.stdout.write(
                f"Forwarding {', '.join(patterns)} of {environment.environment_id} to {url}. Ctrl-C ends it."
            )
            self.stdout.write(f"Signing secret: {listener.secret}")
            self.stdout.flush()
            while not stopped.wait(POLL_SECONDS):
                try:
                    for claimed, result in listener.deliver(stopped.is_set):
                        self._print_attempt(claimed, result, with_body=options["body"])
                except ListenerEnded:
                    raise CommandError(
                        "The subscription was deleted or disabled (an answer of 410 does that): no longer listening."
                    ) from None
                except Error as error:
                    self.stderr.write(f"The database is unavailable ({type(error).__name__}); retrying.")
                    connections[environment.cluster].close()
                    stopped.wait(1)
        self.stdout.write("No longer listening; the subscription is gone.")

    def _print_attempt(self, claimed: ClaimedDelivery, result: AttemptOutcome, *, with_body: bool) -> None:
        answer = f"{result.response_status}" if result.response_status else f"no answer: {result.error}"
        took = f"{result.duration.total_seconds() * 1000:.0f} ms"
        again = f", again in {result.wait.total_seconds():.0f} s" if result.wait is not None else ""
        at = f"{result.at:%H:%M:%S}"
        self.stdout.write(f"{at}  {claimed.event_type}  {claimed.event_id}  {answer} after {took}{again}")
        if with_body:
            self.stdout.write("    " + _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", claimed.body))
        self.stdout.flush()


def _stop_requested() -> threading.Event:
    stopped = threading.Event()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: stopped.set())
    return stopped
