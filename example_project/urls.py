"""The admin, and where the bank calls."""

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

urlpatterns = [
    path("admin/", admin.site.urls),
    path("payments/", include("example_project.shop.urls")),
    path("", RedirectView.as_view(pattern_name="admin:index")),
]
