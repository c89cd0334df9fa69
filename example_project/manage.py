#!/usr/bin/env python
"""Django's command line for the example project; runs from any folder."""

import os
import sys
from pathlib import Path


def main() -> None:
    # Python put this file's folder first; the project is imported from the folder above it.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
    try:
        from django.core.management import execute_from_command_line

        execute_from_command_line(sys.argv)
    except KeyboardInterrupt:
        sys.exit(130)  # what a shell expects of a program that Ctrl-C ended
    except RuntimeError as error:
        embedded = sys.modules.get("example_project.embedded")  # not there with a DATABASE_URL
        if embedded is None or not isinstance(error, embedded.EmbeddedError):
            raise
        sys.exit(str(error))  # it says what to do, which a traceback would hide


if __name__ == "__main__":
    main()
