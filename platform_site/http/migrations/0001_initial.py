import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='IdempotencyRecord',
            fields=[
                ('digest', models.BinaryField(max_length=32, primary_key=True, serialize=False)),
                ('fingerprint', models.BinaryField(max_length=32)),
                ('sealed_answer', models.BinaryField(null=True)),
                ('reference', models.CharField(max_length=64, null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('expires_at', models.DateTimeField()),
            ],
            options={
                'indexes': [models.Index(fields=['expires_at'], name='idempotency_expiry')],
                'constraints': [models.CheckConstraint(condition=models.Q(('sealed_answer__isnull', True), ('reference__isnull', True), _connector='OR'), name='idempotency_answer_or_reference')],
            },
        ),
    ]
