import unicodedata
from typing import Any

from django.db import migrations
from django.db.models import F
from django.db.models.functions import Lower

_BATCH = 1000
_ASCII = r"^[\x01-\x7f]*$"


def _normalised(text: str) -> str:
    return unicodedata.normalize("NFC", text.strip()).lower()


def normalise(apps: Any, editor: Any) -> None:
    """Store emails in lower case and NFC. An address whose normal form another user of the pool has stays as it is."""
    for name, field in (("User", "email"), ("AccountEmail", "recipient"), ("Identity", "email")):
        model = apps.get_model("accounts", name)
        rows = model.objects.using(editor.connection.alias)
        spelled = rows.annotate(lower=Lower(field)).filter(**{f"{field}__regex": _ASCII}).exclude(lower=F(field))
        while batch := list(spelled.values_list("pk", flat=True)[:_BATCH]):
            rows.filter(pk__in=batch).update(**{field: Lower(field)})
        others = list(rows.exclude(**{f"{field}__regex": _ASCII}).exclude(**{f"{field}__isnull": True}))
        taken = [(row.environment_id, _normalised(row.email)) for row in others] if name == "User" else []
        for row in others:
            normal = _normalised(getattr(row, field))
            if name == "User" and (
                taken.count((row.environment_id, normal)) > 1
                or rows.filter(environment_id=row.environment_id, email=normal).exclude(pk=row.pk).exists()
            ):
                continue
            rows.filter(pk=row.pk).update(**{field: normal})


class Migration(migrations.Migration):
    atomic = False  # each batch by itself, so that no row stays locked for long

    dependencies = [
        ("accounts", "0010_audit_of_address"),
    ]

    operations = [
        migrations.RunPython(normalise, migrations.RunPython.noop),
    ]
