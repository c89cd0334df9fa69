"""``manage.py awa``: the operator's verbs on a terminal, as data, with their tables and their JSON.

:data:`~awa_django.console.tree.VERBS` is the tree, made when :mod:`awa_django.console.verbs` is imported;
:func:`~awa_django.console.run.run` carries one out. The functions behind the verbs are those of
:mod:`awa_django.operations` and its neighbours.
"""

from __future__ import annotations

import awa_django.console.verbs  # noqa: F401  (fills the tree)
from awa_django.console.run import run
from awa_django.console.tree import add_verbs, overview

__all__ = ["add_verbs", "overview", "run"]
