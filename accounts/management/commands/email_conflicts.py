import json
from collections import defaultdict
from typing import Any

from django.db.models import F, Q
from django.db.models.functions import Lower

from accounts.management import terminal
from accounts.models import User
from accounts.users.emails import normalize


class Command(terminal.Command):
    help = (
        "List users of one pool whose emails are equal in lower case and NFC. Each of them signs in with the stored "
        "spelling. To resolve a conflict, change the email of one of them or delete it."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        conflicts = _conflicts()
        if options["json"]:
            self.stdout.write(json.dumps(conflicts))
            return
        for user in conflicts:
            self.stdout.write(
                f"{user['environment_id'] or 'platform'}  {user['address']}  {user['id']}  {user['email']}"
            )
        self.stderr.write(f"{len(conflicts)} users have an email that conflicts with another user's.")


def _conflicts() -> list[dict[str, Any]]:
    found: dict[tuple[str | None, str], dict[str, str]] = defaultdict(dict)
    users = User.objects.annotate(lower_email=Lower("email"))
    spelled = users.filter(~Q(email=F("lower_email")) | ~Q(email__regex=r"^[\x01-\x7f]*$"))
    for user in spelled.only("id", "environment_id", "email").iterator():
        found[user.environment_id, normalize(user.email)][user.pk] = user.email
    for (pool_id, address), group in found.items():
        group.update(User.objects.in_pool(pool_id).filter(email=address).values_list("pk", "email"))
    return [
        {"environment_id": pool_id, "address": address, "id": user_id, "email": email}
        for (pool_id, address), group in sorted(found.items(), key=lambda item: (item[0][0] or "", item[0][1]))
        if len(group) > 1
        for user_id, email in sorted(group.items())
    ]
