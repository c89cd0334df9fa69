#!/usr/bin/env python
"""Django's command line for the example project; runs from any folder."""

import os
import sys
from pathlib import Path


def main() -> None:
    # Python put this file's folder first; the project is imported from the folder above it.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
