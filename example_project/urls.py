"""The admin, where the bank calls, and where other machines ask."""

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

urlpatterns = [
    path("admin/", admin.site.urls),
    # The bank's answer changes orders as well as its job, so the shop takes it itself.
    path("payments/", include("example_project.shop.urls")),
    # Whoever only ends a job needs no view of ours: /awa/callbacks/<id>/complete. And /awa/health/.
    path("awa/", include("awa_django.urls")),
    path("", RedirectView.as_view(pattern_name="admin:index")),
]
