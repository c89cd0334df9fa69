"""The frame of the desk's pages: who may see them, what stands around them, and how an action is carried out.

Every page is read in one look at the database, with a time limit for each statement. Nothing here writes but
:meth:`DeskAdmin.action_view`, which takes POST alone, asks before it acts, and acts and logs in one transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

import psycopg
from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import quote, unquote
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import DatabaseError, OperationalError, models, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, QueryDict
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from awa_django.admin.actions import Action, Answer, Call, Offer, Text
from awa_django.conf import get_settings
from awa_django.enqueue import queue_alias
from awa_django.errors import AwaError
from awa_django.operations import JobFilter, one_look, preview_batch, submit_batch
from awa_django.operations.desk import Desk, looking
from awa_django.operations.pulse import Pulse, pulse

__all__ = ["NAV", "DeskAdmin", "frame_context", "read_page"]

logger = logging.getLogger("awa_django.admin")

#: Pages of the desk in the order of the navigation: label, URL name, and the permission to see it.
NAV: Sequence[tuple[Text, str, str]] = (
    (_("Jobs"), "job", "view_job"),
    (_("Dead letters"), "dlqentry", "view_dlqentry"),
    (_("Callbacks"), "waitingcallback", "view_waitingcallback"),
    (_("Queues"), "queuemeta", "view_queuemeta"),
    (_("Kinds"), "kinddescriptor", "view_kinddescriptor"),
    (_("Schedules"), "cronjob", "view_cronjob"),
    (_("Workers"), "runtimeinstance", "view_runtimeinstance"),
    (_("Batch operations"), "batchoperation", "view_batchoperation"),
    (_("Storage"), "storagetransitionstate", "view_storagetransitionstate"),
)
#: Objects that a confirmation page names.
SHOWN = 10
#: Ids that a log entry names.
LOGGED = 50
Key = int | str | UUID
#: Fields of an action's form whose values are payloads: not for whoever reads the log.
UNLOGGED = ("payload", "error")
#: Fields of an action's form begin with it; a filter beside them may have the same names.
PREFIX = "do"


def may(request: HttpRequest, codename: str) -> bool:
    """Whether the user has a permission of this app."""
    return request.user.has_perm(f"awa_django.{codename}")


def read_only_reason() -> Text | None:
    """Why nothing can be changed from here; None if it can. Within a look, the database has been asked too."""
    if get_settings().read_only:
        return _("This site only shows: AWA['READ_ONLY'] is set.")
    look = looking()
    if look is not None and look.read_only:
        return _("The database takes no changes: this connection is read-only.")
    return None


@contextmanager
def changing() -> Iterator[None]:
    """A transaction for a change and its log entry, which commit together where both are in one database.

    A database that takes no changes is refused like a missing permission.
    """
    try:
        with transaction.atomic(using=queue_alias()):
            yield
    except DatabaseError as error:
        if not isinstance(error.__cause__, psycopg.errors.ReadOnlySqlTransaction):
            raise
        raise PermissionDenied(
            str(_("The database takes no changes: this connection is read-only."))
        ) from error


def frame_context(request: HttpRequest, site: admin.AdminSite, look: Desk) -> dict[str, Any]:
    """What every page of the desk shows around its own: navigation, live workers, and whether anything can be changed.

    Called within the look that the page is read in.
    """
    beat = pulse()
    return {
        "nav": _navigation(request, site, beat),
        "pulse": beat,
        "read_only": read_only_reason(),
        "may_see_payloads": may(request, "view_job_payload"),
    }


def _navigation(request: HttpRequest, site: admin.AdminSite, beat: Pulse) -> list[dict[str, Any]]:
    pages: list[dict[str, Any]] = []
    if may(request, "view_job"):
        url = reverse(f"{site.name}:app_list", args=["awa_django"])
        pages.append({"label": _("Dashboard"), "url": url, "is_here": request.path == url})
    registered = {model._meta.model_name for model in site._registry if model._meta.app_label == "awa_django"}
    for label, model, codename in NAV:
        if model in registered and may(request, codename):
            url = reverse(f"{site.name}:awa_django_{model}_changelist")
            pages.append({"label": label, "url": url, "is_here": request.path.startswith(url)})
            if model == "dlqentry" and beat.dead_letters:
                pages[-1] |= {"count": beat.dead_letters, "is_more": beat.has_more_dead_letters}
    return pages


def read_page(
    request: HttpRequest, site: admin.AdminSite, build: Callable[[Desk], Mapping[str, Any]]
) -> dict[str, Any]:
    """The context of a page: what ``build`` reads and the frame around it, in one look."""
    with one_look(statement_timeout=get_settings().admin_statement_timeout) as look:
        return {**site.each_context(request), **frame_context(request, site, look), **build(look)}


if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
else:
    _ModelAdmin = admin.ModelAdmin


@dataclass(frozen=True, slots=True)
class _Shown:
    """An object as Django's templates address and name it."""

    pk: str
    name: str

    def __str__(self) -> str:
        return self.name


class DeskAdmin(_ModelAdmin):
    """Pages over rows of the queue: shown, never edited, changed by actions alone.

    A subclass names its templates and actions and says what a list and a page of one hold.
    """

    list_template: ClassVar[str]
    detail_template: ClassVar[str] = ""
    #: What can be done to what is listed here, in the order of the buttons.
    offered: ClassVar[Sequence[Action]] = ()
    actions = None

    # What a subclass says

    def read_list(self, request: HttpRequest, look: Desk) -> Mapping[str, Any]:
        """The context of the list."""
        raise NotImplementedError

    def read_detail(self, request: HttpRequest, look: Desk, key: str) -> Mapping[str, Any]:
        """The context of one object's page; raises ``LookupError`` for one that there is not."""
        raise LookupError(key)

    def filter_of(self, parameters: QueryDict) -> JobFilter:
        """The jobs that a list's parameters mean, for an action on all of them."""
        raise Http404

    def hidden_filter(self, parameters: QueryDict) -> list[tuple[str, str]]:
        """The parameters of :meth:`filter_of` that a confirmation page must send again."""
        own = {"csrfmiddlewaretoken", "matching", "confirmed", "next", ACTION_CHECKBOX_NAME}
        return [
            (name, value)
            for name, values in parameters.lists()
            if name not in own and not name.startswith(f"{PREFIX}-")
            for value in values
            if value
        ]

    def name_of(self, key: str) -> str:
        """What an object is called on the confirmation page and in the log."""
        return f"{self.opts.verbose_name} {key}"

    # Who may

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody: what is listed here is made by the queue."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Nobody: rows are changed by actions."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Nobody: rows go by actions."""
        return False

    def has_view_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Whoever has the model's ``view`` permission."""
        return may(request, f"view_{self.opts.model_name}")

    # The pages

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> models.Model | None:
        """What the page of past actions is about. Not asked from the database, which may have forgotten it."""
        pk = self.opts.pk
        assert pk is not None
        if "\0" in object_id:
            return None
        try:
            found: models.Model = self.model(**{pk.attname: pk.to_python(object_id)})
        except ValidationError:
            return None
        return found

    def get_urls(self) -> list[URLPattern]:
        """The ordinary ones, and two for actions: on one object, and on several."""
        wrap = self.admin_site.admin_view
        name = f"awa_django_{self.opts.model_name}_action"
        return [
            path("do/<slug:name>/", wrap(self.action_view), name=f"{name}_many"),
            path("<path:object_id>/do/<slug:name>/", wrap(self.action_view), name=name),
            *super().get_urls(),
        ]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The list."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return self.page(
            request,
            self.list_template,
            lambda look: {
                "title": capfirst(str(self.opts.verbose_name_plural)),
                "bulk_offers": self.bulk_offers(request),
                **self.read_list(request, look),
                **(extra_context or {}),
            },
        )

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """What was done from here to one object, which may be long gone."""
        key = unquote(object_id)
        shown = _Shown(key, self.name_of(key))
        context = {"object": shown, "title": _("Past actions: %(name)s") % {"name": shown}}
        return super().history_view(request, object_id, {**context, **(extra_context or {})})

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """The page of one object."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if not self.detail_template:
            raise Http404
        key = unquote(object_id)
        try:
            return self.page(
                request,
                self.detail_template,
                lambda look: {
                    "title": capfirst(self.name_of(key)),
                    "object_id": object_id,
                    "key": key,
                    **self.read_detail(request, look, key),
                    **(extra_context or {}),
                },
            )
        except LookupError as error:
            if isinstance(error, KeyError | IndexError):
                raise  # a mistake of ours, not an object that is gone
            messages.warning(request, str(error) or f"there is no {self.name_of(key)}")
            return redirect(self.list_url())

    def page(
        self,
        request: HttpRequest,
        template: str,
        build: Callable[[Desk], Mapping[str, Any]],
        *,
        status: int = 200,
    ) -> HttpResponse:
        """A page that is read in one look. One that takes the database too long says so, with 503."""
        request.current_app = self.admin_site.name
        try:
            context = read_page(request, self.admin_site, build)
        except OperationalError as error:
            if not isinstance(error.__cause__, psycopg.errors.QueryCanceled):
                raise
            logger.warning("a page took the database too long: %s", request.path)
            limit = get_settings().admin_statement_timeout.total_seconds()
            context = {
                **self.admin_site.each_context(request),
                "title": _("That took the database too long"),
                "limit": limit,
            }
            template, status = "admin/awa_django/too_slow.html", 503
        context = {"opts": self.opts, "media": self.media, **context}
        return TemplateResponse(request, template, context, status=status)

    def list_url(self) -> str:
        """Where the list is."""
        return reverse(f"{self.admin_site.name}:awa_django_{self.opts.model_name}_changelist")

    def detail_url(self, key: Key) -> str:
        """Where the page of one object is."""
        return reverse(f"{self.admin_site.name}:awa_django_{self.opts.model_name}_change", args=[quote(key)])

    # Actions

    def offers(self, request: HttpRequest, key: Key, shown: object) -> list[Offer]:
        """The actions that whoever asks may do to one object, as it is now."""
        if read_only_reason():
            return []
        name = f"{self.admin_site.name}:awa_django_{self.opts.model_name}_action"
        return [
            Offer(action, reverse(name, args=[quote(key), action.name]))
            for action in self.offered
            if action.is_permitted(request) and action.applies(shown)
        ]

    def bulk_offers(self, request: HttpRequest) -> list[Offer]:
        """The actions that whoever asks may do to several."""
        if read_only_reason():
            return []
        name = f"{self.admin_site.name}:awa_django_{self.opts.model_name}_action_many"
        return [
            Offer(action, reverse(name, args=[action.name]))
            for action in self.offered
            if action.to_many and action.is_permitted(request)
        ]

    def action_view(self, request: HttpRequest, name: str, object_id: str | None = None) -> HttpResponse:
        """Ask, then act.

        The first POST answers with a confirmation page, the second, which has ``confirmed``, acts. What is meant is
        the object of the URL, those of the ``_selected_action`` fields, or with ``matching`` all that the list's
        parameters mean.
        """
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        request.current_app = self.admin_site.name
        action = next((action for action in self.offered if action.name == name), None)
        if action is None:
            raise Http404
        matching = object_id is None and "matching" in request.POST
        if not self.has_view_permission(request) or not action.is_permitted(
            request, *(["submit_batchoperation"] if matching else [])
        ):
            raise PermissionDenied
        if reason := read_only_reason():
            raise PermissionDenied(str(reason))
        keys = [unquote(object_id)] if object_id is not None else request.POST.getlist(ACTION_CHECKBOX_NAME)
        if (matching and action.batch is None) or any("\0" in key for key in keys):
            raise Http404
        if not matching and not keys:
            messages.warning(request, _("Nothing was selected, and nothing was changed."))
            return redirect(self._next(request, self.list_url()))
        call = Call(request, keys, self.filter_of(request.POST) if matching else None)
        confirmed = "confirmed" in request.POST
        form = None
        if action.form is not None:
            initial = {} if confirmed else dict(action.initial(call))
            form = action.form(request.POST if confirmed else None, initial=initial, prefix=PREFIX)
        if confirmed and (form is None or form.is_valid()):
            call = Call(request, keys, call.filter, form.cleaned_data if form is not None else {})
            done = self._carry_out(action, call, form)
            if done is not None:
                return done
        return self._confirmation(action, call, form)

    def _carry_out(self, action: Action, call: Call, form: forms.Form | None) -> HttpResponse | None:
        """Do it and go on; None if it was refused, with what the form then says."""
        request = call.request
        try:
            with changing():
                answer = self._submit(action, call) if call.filter is not None else action.run(call)
                self._log(action, call, answer)
        except (AwaError, ValueError, LookupError) as error:
            text = str(error)
            if form is not None:
                form.add_error(None, text)
                return None
            messages.error(request, capfirst(text))
            return redirect(self._next(request, self.list_url()))
        level = messages.SUCCESS
        if answer.skipped:
            level = messages.WARNING if answer.changed else messages.ERROR
        messages.add_message(request, level, answer.sentence(action))
        return redirect(answer.goes_to or self._next(request, self.list_url()))

    def _submit(self, action: Action, call: Call) -> Answer:
        """Have a batch operation do it to all that match."""
        assert action.batch is not None
        assert call.filter is not None
        operation = submit_batch(action.batch(call.values), call.filter, submitted_by=call.by)
        url = reverse(f"{self.admin_site.name}:awa_django_batchoperation_change", args=[quote(operation.id)])
        return Answer(
            text=str(_("Submitted: %(what)s. A worker goes on with it; this page shows how far it is."))
            % {"what": operation.description},
            goes_to=url,
        )

    def _log(self, action: Action, call: Call, answer: Answer) -> None:
        """One entry for an action, however many it changed."""
        several = len(call.keys) != 1
        named = (
            "" if not several else ", ".join(call.keys[:LOGGED]) + (", …" if len(call.keys) > LOGGED else "")
        )
        said = [str(action.label) + ":", answer.sentence(action)]
        said += [
            f"{name}: {value}."
            for name, value in call.values.items()
            if value not in (None, "") and name not in UNLOGGED
        ]
        if named:
            said.append(f"({named})")
        LogEntry.objects.create(
            user_id=call.request.user.pk,  # type: ignore[misc]  # nobody comes here without one
            content_type_id=ContentType.objects.get_for_model(self.model, for_concrete_model=False).pk,
            object_id=None if several else call.key,
            object_repr=(self._what(call) if several else self.name_of(call.key))[:200],
            action_flag=CHANGE,
            change_message=" ".join(said),
        )

    def _what(self, call: Call) -> str:
        if call.filter is not None:
            return str(_("all that match"))
        count = len(call.keys)
        return f"{count:,} {ngettext('selected', 'selected', count)}"

    def _confirmation(self, action: Action, call: Call, form: forms.Form | None) -> HttpResponse:
        request = call.request

        def build(look: Desk) -> dict[str, Any]:
            if reason := read_only_reason():
                raise PermissionDenied(str(reason))
            preview = None
            count: int | None = len(call.keys)
            if call.filter is not None:
                assert action.batch is not None
                # How many it concerns does not depend on what the form will say.
                preview = preview_batch(action.batch(action.sample), call.filter)
                count = preview.total_matched
            elif action.counts is not None:
                count = action.counts(call)
            return {
                "title": capfirst(str(action.label)),
                "action": action,
                "form": form,
                "count": count,
                "preview": preview,
                "matching": call.filter is not None,
                "objects": [self.name_of(key) for key in call.keys[:SHOWN]],
                "more": max(0, len(call.keys) - SHOWN),
                "hidden": self._hidden(request, call),
                "back_url": self._next(request, self.list_url()),
            }

        return self.page(request, "admin/awa_django/confirm.html", build)

    def _hidden(self, request: HttpRequest, call: Call) -> list[tuple[str, str]]:
        fields = [(ACTION_CHECKBOX_NAME, key) for key in call.keys]
        if call.filter is not None:
            fields = [("matching", "1"), *self.hidden_filter(request.POST)]
        if given := request.POST.get("next"):
            fields.append(("next", given))
        return fields

    def _next(self, request: HttpRequest, otherwise: str) -> str:
        given = request.POST.get("next", "")
        if url_has_allowed_host_and_scheme(given, {request.get_host()}, require_https=request.is_secure()):
            return given
        return otherwise
