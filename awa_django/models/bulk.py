# ruff: noqa: DJ001
# NULL says what it says in the table that is shared.
"""Batch operations that only this package knows; the one table here that Django makes.

It is no part of the schema that other clients share, so it lies where Django's own tables lie. It is read by Django's
name for it and written by the functions of :mod:`awa_django.operations`.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from awa_django.models.columns import ReadModel

__all__ = ["BulkOperation"]


class BulkOperation(ReadModel):
    """A change of many jobs, made in chunks by one worker at a time.

    Permissions are those of :class:`~awa_django.models.BatchOperation`: to people both are one list.
    """

    id = models.UUIDField(primary_key=True)
    op_kind = models.CharField(_("operation"), max_length=40)
    filter = models.JSONField(_("filter"))
    spec = models.JSONField(_("change"))
    state = models.CharField(_("state"), max_length=20)
    submitted_by = models.TextField(_("submitted by"), null=True)
    submitted_at = models.DateTimeField(_("submitted at"), db_index=True)
    started_at = models.DateTimeField(_("started at"), null=True)
    finalized_at = models.DateTimeField(_("finalized at"), null=True)
    cursor = models.JSONField(_("cursor"), null=True)
    total_matched = models.BigIntegerField(_("matched"), null=True)
    processed = models.BigIntegerField(_("processed"))
    skipped = models.BigIntegerField(_("skipped"))
    errored = models.BigIntegerField(_("errored"))
    last_error = models.TextField(_("last error"), null=True)
    runner_instance = models.UUIDField(_("run by"), null=True)
    retention_until = models.DateTimeField(_("kept until"), null=True)
    updated_at = models.DateTimeField(_("updated at"))
    skip_reasons = models.JSONField(_("skipped, by reason"))
    problems = models.JSONField(_("jobs that did not change"))

    class Meta(ReadModel.Meta):
        managed = True
        db_table = "awa_django_batchoperation"
        default_permissions = ()  # type: ignore[assignment]
        verbose_name = _("bulk operation")
        verbose_name_plural = _("bulk operations")
