"""`python -m kubectl_holdfast`."""

import sys

from kubectl_holdfast.main import main

sys.exit(main())
