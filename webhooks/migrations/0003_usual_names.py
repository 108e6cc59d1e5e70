"""Indexes have usual names. Deliveries and attempts have no second index of ids, for searches
by a prefix, which nothing makes."""

from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('webhooks', '0002_names'),
    ]

    operations = [
        migrations.RenameIndex(
            model_name='delivery',
            new_name='delivery_failed',
            old_name='delivery_lost',
        ),
        migrations.RenameIndex(
            model_name='delivery',
            new_name='delivery_subject_order',
            old_name='delivery_turn',
        ),
        migrations.RenameIndex(
            model_name='webhook',
            new_name='webhook_to_reconcile',
            old_name='webhook_with_an_order',
        ),
        migrations.RunSQL(
            "DROP INDEX IF EXISTS platform.webhooks_delivery_id_b47d672f_like, platform.webhooks_attempt_delivery_id_bb1708b1_like",
            migrations.RunSQL.noop,
        ),
    ]
