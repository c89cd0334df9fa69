"""A table for batch operations that other clients have no words for; permissions; callbacks as a model of their own.

Creates one table, in Django's own schema of the queue's database. Locks nothing that is there.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models

from awa_django.migration_operations import CreateQueueModel


class Migration(migrations.Migration):
    dependencies: ClassVar = [("awa_django", "0001_initial")]

    operations: ClassVar = [
        migrations.CreateModel(
            name="WaitingCallback",
            fields=[],
            options={
                "verbose_name": "callback",
                "verbose_name_plural": "callbacks",
                "abstract": False,
                "managed": False,
                "proxy": True,
                "default_permissions": ("view",),
                "base_manager_name": "objects",
            },
            bases=("awa_django.lease",),
        ),
        CreateQueueModel(
            name="BulkOperation",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("op_kind", models.CharField(max_length=40, verbose_name="operation")),
                ("filter", models.JSONField(verbose_name="filter")),
                ("spec", models.JSONField(verbose_name="change")),
                ("state", models.CharField(max_length=20, verbose_name="state")),
                ("submitted_by", models.TextField(null=True, verbose_name="submitted by")),
                ("submitted_at", models.DateTimeField(db_index=True, verbose_name="submitted at")),
                ("started_at", models.DateTimeField(null=True, verbose_name="started at")),
                ("finalized_at", models.DateTimeField(null=True, verbose_name="finalized at")),
                ("cursor", models.JSONField(null=True, verbose_name="cursor")),
                ("total_matched", models.BigIntegerField(null=True, verbose_name="matched")),
                ("processed", models.BigIntegerField(verbose_name="processed")),
                ("skipped", models.BigIntegerField(verbose_name="skipped")),
                ("errored", models.BigIntegerField(verbose_name="errored")),
                ("last_error", models.TextField(null=True, verbose_name="last error")),
                ("runner_instance", models.UUIDField(null=True, verbose_name="run by")),
                ("retention_until", models.DateTimeField(null=True, verbose_name="kept until")),
                ("updated_at", models.DateTimeField(verbose_name="updated at")),
                ("skip_reasons", models.JSONField(verbose_name="skipped, by reason")),
                ("problems", models.JSONField(verbose_name="jobs that did not change")),
            ],
            options={
                "verbose_name": "bulk operation",
                "verbose_name_plural": "bulk operations",
                "db_table": "awa_django_batchoperation",
                "abstract": False,
                "managed": True,
                "default_permissions": (),
                "base_manager_name": "objects",
            },
        ),
        migrations.AlterModelOptions(
            name="cronjob",
            options={
                "base_manager_name": "objects",
                "default_permissions": ("view",),
                "managed": False,
                "permissions": [
                    ("pause_cronjob", "Can pause and resume schedules"),
                    ("trigger_cronjob", "Can trigger schedules"),
                    ("delete_cronjob", "Can delete schedules"),
                ],
                "verbose_name": "schedule",
                "verbose_name_plural": "schedules",
            },
        ),
        migrations.AlterModelOptions(
            name="job",
            options={
                "base_manager_name": "objects",
                "default_permissions": ("view",),
                "managed": False,
                "permissions": [
                    ("view_job_payload", "Can see arguments, metadata, errors and progress of jobs"),
                    ("retry_job", "Can retry jobs"),
                    ("run_job_now", "Can make jobs due that wait for their time"),
                    ("cancel_job", "Can cancel jobs"),
                    ("change_job_priority", "Can change the priority of jobs"),
                    ("move_job", "Can move jobs to another queue"),
                    ("discard_job", "Can discard failed jobs"),
                    ("resolve_callback", "Can complete, fail, retry and resume waiting callbacks"),
                ],
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
            },
        ),
        migrations.AlterModelOptions(
            name="kinddescriptor",
            options={
                "base_manager_name": "objects",
                "default_permissions": ("view",),
                "managed": False,
                "verbose_name": "kind",
                "verbose_name_plural": "kinds",
            },
        ),
        migrations.AlterModelOptions(
            name="queuemeta",
            options={
                "base_manager_name": "objects",
                "default_permissions": ("view",),
                "managed": False,
                "permissions": [
                    ("pause_queue", "Can pause and resume queues"),
                    ("drain_queue", "Can drain queues"),
                    ("change_queue_shards", "Can change the enqueue shards of queues"),
                ],
                "verbose_name": "queue",
                "verbose_name_plural": "queues",
            },
        ),
        migrations.AlterModelOptions(
            name="storagetransitionstate",
            options={
                "base_manager_name": "objects",
                "default_permissions": ("view",),
                "managed": False,
                "permissions": [("manage_storage", "Can move jobs from one storage engine to the other")],
                "verbose_name": "storage",
                "verbose_name_plural": "storage",
            },
        ),
    ]
