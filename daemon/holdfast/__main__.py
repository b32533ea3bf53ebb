"""Lets `python -m holdfast` be the command."""

import sys

from holdfast.cli import main

sys.exit(main())
