"""Array parameters, under the name that this plane's modules import them by."""

from awa_django.planes.arrays import dump_json, ints, jsons

__all__ = ["dump_json", "ints", "jsons"]
