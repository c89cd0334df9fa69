"""What the bank calls."""

from __future__ import annotations

from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from awa_django import CallbackNotFound, callbacks
from awa_django.signatures import SIGNATURE_HEADER, verify
from example_project.shop.models import Order, Payment


@csrf_exempt
@require_POST
def bank_answered(request: HttpRequest, callback_id: UUID, paid: bool) -> HttpResponse:
    """Take the bank's answer: 204, or 401 for a signature that is not the bank's, or 404 where nobody waits for it.

    What the shop writes down, what becomes of the job, and the job that follows commit together.
    """
    signature = request.headers.get(SIGNATURE_HEADER, "")
    if not verify(str(callback_id), signature, settings.CALLBACK_SECRETS):
        return HttpResponse("the signature is not the bank's\n", status=401)
    now = timezone.now()
    try:
        with transaction.atomic():
            asked = Payment.objects.filter(callback_id=callback_id)
            asked.update(paid=paid, answered_at=now)
            if paid:
                Order.objects.filter(payment__in=asked).update(paid_at=now)
                callbacks.complete(callback_id)
            else:
                callbacks.fail(callback_id, "the bank declined the transfer")
    except CallbackNotFound:
        return HttpResponse("no payment waits for this answer\n", status=404)
    return HttpResponse(status=204)
