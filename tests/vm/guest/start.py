"""What the guest starts: it loads the daemon, and runs the cases in a child that has loaded it by that.

What it has loaded until then is all that a daemon of a case has loaded.
"""

import sys

from forked import Template

template = Template.above()

from vm.guest.runner import main  # noqa: E402 - of the child alone

main(sys.argv[1:], template)
