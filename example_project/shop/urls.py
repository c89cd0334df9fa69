"""Where the bank calls when it has an answer."""

from django.urls import path

from example_project.shop.views import bank_answered

urlpatterns = [
    path("<uuid:callback_id>/complete", bank_answered, {"paid": True}),
    path("<uuid:callback_id>/fail", bank_answered, {"paid": False}),
]
