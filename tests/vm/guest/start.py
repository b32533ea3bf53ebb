"""The guest's first program: loads the daemon, and runs the cases in a child process.

Daemons are forked from it, and have loaded what it has: nothing of the cases.
"""

import sys

from forked import Template

template = Template.as_parent()

from vm.guest.runner import main  # noqa: E402 - of the child alone

main(sys.argv[1:], template)
