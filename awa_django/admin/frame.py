"""The frame of the desk's pages: who may see them, what stands around them, and how an action is carried out.

Nothing here writes but :meth:`DeskAdmin.action_view`, which takes POST alone, asks before it acts, and acts and logs in
one transaction. How a page is read: :mod:`awa_django.admin.pages`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
from django.db import DatabaseError, OperationalError, connections, models, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, QueryDict
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from awa_django.admin.actions import Action, Answer, Call, Offer, Text, submitted
from awa_django.admin.kept import forget
from awa_django.admin.pages import Build, frame_of, look_of_page, may, read_only_reason, read_page, too_slow
from awa_django.enqueue import queue_alias
from awa_django.errors import AwaError, WrongState
from awa_django.operations import JobFilter, preview_batch, submit_batch
from awa_django.operations.desk import Desk
from awa_django.sql import statement

__all__ = ["PREFIX", "DeskAdmin", "changing"]

#: Objects that a confirmation page names.
SHOWN = 10
#: Ids that a log entry names.
LOGGED = 50
#: Errors that are ours, though their bases say that an object is gone or a value is refused.
MISTAKES = (KeyError, IndexError, UnicodeError)
Key = int | str | UUID
#: Fields of an action's form whose values are payloads: not for whoever reads the log, or the report of an error.
UNLOGGED = ("payload", "error")
#: Fields of an action's form begin with it; a filter beside them may have the same names.
PREFIX = "do"


@contextmanager
def changing() -> Iterator[None]:
    """A transaction for a change and its log entry, which commit together where both are in one database.

    A database that takes no changes is refused like a missing permission. Raises ``WrongState`` where somebody else
    has held for ten seconds what is to be changed, or waits for what is held here.
    """
    alias = queue_alias()
    try:
        with transaction.atomic(using=alias):
            with connections[alias].cursor() as cursor:
                cursor.execute(statement("control/patience", "wait_briefly"))
            yield
    except DatabaseError as error:
        match error.__cause__:
            case psycopg.errors.ReadOnlySqlTransaction():
                raise PermissionDenied(
                    str(_("The database takes no changes: this connection is read-only."))
                ) from error
            case psycopg.errors.LockNotAvailable() | psycopg.errors.DeadlockDetected():
                raise WrongState(
                    str(_("Another transaction is at work on this, and nothing was changed. Try again soon."))
                ) from error
        raise


if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
else:
    _ModelAdmin = admin.ModelAdmin


@dataclass(frozen=True, slots=True)
class _Shown:
    """An object as Django's templates address and name it."""

    pk: str
    name: str
    #: Other themes make addresses of it.
    _meta: Any

    def __str__(self) -> str:
        return self.name


class DeskAdmin(_ModelAdmin):
    """Pages over rows of the queue: shown, never edited, changed by actions alone.

    A subclass names its templates and actions and says what a list and a page of one hold.
    """

    list_template: ClassVar[str]
    #: Empty where all there is is on the list.
    detail_template: ClassVar[str] = ""
    #: What the list is called in its title, the navigation and the crumbs.
    label: ClassVar[Text]
    #: What an object is called on the confirmation page and in the log.
    called: ClassVar[Text]
    #: What can be done to what is listed here, in the order of the buttons.
    offered: ClassVar[Sequence[Action]] = ()
    actions = None

    class Media:
        #: None of the scripts that Django's own lists and forms need.
        extend = False

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
        """:attr:`called`, of one."""
        return str(self.called) % key

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
        # An object may be called "do".
        mistaken = (("change", self.change_view), ("history", self.history_view))
        return [
            *(path(f"do/{page}/", wrap(view), {"object_id": "do"}) for page, view in mistaken),
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
                "title": self.label,
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
        shown = _Shown(key, self.name_of(key), self.opts)
        context = {"object": shown, "title": _("Past actions: %(name)s") % {"name": shown}}

        def answer() -> HttpResponse:
            with look_of_page():
                around = {"media": self.media, "list_label": self.label, **frame_of(request, self.admin_site)}
            return super(DeskAdmin, self).history_view(
                request, object_id, {**around, **context, **(extra_context or {})}
            )

        return self.in_time(request, answer)

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
            return redirect(self.list_url())
        key = unquote(object_id)
        try:
            return self.page(
                request,
                self.detail_template,
                lambda look: {
                    "title": capfirst(self.name_of(key)),
                    "crumb": key,
                    "object_id": object_id,
                    "key": key,
                    **self.read_detail(request, look, key),
                    **(extra_context or {}),
                },
            )
        except LookupError as error:
            if isinstance(error, MISTAKES):
                raise
            messages.warning(request, capfirst(str(error)))
            return redirect(self.list_url())

    def page(self, request: HttpRequest, template: str, build: Build) -> HttpResponse:
        """A page that is read in one look. One that takes the database too long says so, with 503."""
        request.current_app = self.admin_site.name
        template, context, is_read = read_page(request, self.admin_site, template, build)
        return self._page(request, template, context, status=200 if is_read else 503)

    def _page(
        self, request: HttpRequest, template: str, context: Mapping[str, Any], *, status: int
    ) -> HttpResponse:
        context = {"opts": self.opts, "media": self.media, "list_label": self.label, **context}
        return TemplateResponse(request, template, context, status=status)

    def in_time(self, request: HttpRequest, answer: Callable[[], HttpResponse]) -> HttpResponse:
        """What is answered; instead of what takes the database too long there is the page that says so."""
        request.current_app = self.admin_site.name
        try:
            return answer()
        except OperationalError as error:
            return self._page(request, *too_slow(request, self.admin_site, error), status=503)

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
        request.sensitive_post_parameters = [f"{PREFIX}-{name}" for name in UNLOGGED]  # type: ignore[attr-defined]
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
        form = None
        if "confirmed" in request.POST:
            if action.form is not None:
                form = action.form(request.POST, prefix=PREFIX)
            if form is None or form.is_valid():
                call = replace(call, values=form.cleaned_data if form is not None else {})
                done = self._carry_out(action, call, form)
                if done is not None:
                    return done
        try:
            return self._confirmation(action, call, form)
        except (AwaError, ValueError, LookupError) as error:
            return self._refused(request, error)

    def _carry_out(self, action: Action, call: Call, form: forms.Form | None) -> HttpResponse | None:
        """Do it and go on; None if it was refused, with what the form then says."""
        request = call.request
        try:
            with changing():
                answer = self._submit(action, call) if call.filter is not None else action.run(call)
                self._log(action, call, answer)
        except (AwaError, ValueError, LookupError) as error:
            if form is not None and not isinstance(error, MISTAKES):
                form.add_error(None, str(error))
                return None
            return self._refused(request, error)
        forget()
        level = messages.SUCCESS
        if answer.skipped:
            level = messages.WARNING if answer.changed else messages.ERROR
        messages.add_message(request, level, answer.sentence(action))
        return redirect(answer.goes_to or self._next(request, self.list_url()))

    def _refused(self, request: HttpRequest, error: Exception) -> HttpResponse:
        """Say why, where whoever asks came from."""
        if isinstance(error, MISTAKES):
            raise error
        messages.error(request, capfirst(str(error)))
        return redirect(self._next(request, self.list_url()))

    def _submit(self, action: Action, call: Call) -> Answer:
        """Have a batch operation do it to all that match."""
        assert action.batch is not None
        assert call.filter is not None
        operation = submit_batch(action.batch(call.values), call.filter, submitted_by=call.by)
        return submitted([operation], call)

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
        return str(_("%(count)s selected")) % {"count": f"{len(call.keys):,}"}

    def _confirmation(self, action: Action, call: Call, form: forms.Form | None) -> HttpResponse:
        request = call.request

        def build(look: Desk) -> dict[str, Any]:
            if reason := read_only_reason():
                raise PermissionDenied(str(reason))
            asked = form
            if asked is None and action.form is not None:
                asked = action.form(initial=dict(action.initial(call)), prefix=PREFIX)
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
                "form": asked,
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
