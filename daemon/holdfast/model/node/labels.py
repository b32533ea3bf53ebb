"""Node labels, and the file in which node-feature-discovery finds them.

The file is one of its `features.d` folder: a line ``key=value`` for each label. What its line
``# +expiry-time`` says (from release 0.15) is when the labels go if nobody writes the file again.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime

MOST = 63
"""Characters of a label's value."""
_REFUSED = re.compile(r"[^A-Za-z0-9_. -]")


def label_value(text: str) -> str:
    """Return *text* as Kubernetes takes it for a label's value; empty if nothing of it is left.

    As NVIDIA's GPU feature discovery does it, so that a product has the name that it has there:
    blanks become dashes, and other characters are left out.

    >>> label_value("NVIDIA H100 80GB HBM3 (PCIe)")
    'NVIDIA-H100-80GB-HBM3-PCIe'
    """
    kept = "-".join(_REFUSED.sub("", text).split())
    return kept[:MOST].strip("-_.")


def feature_file(labels: Mapping[str, str], *, until: float) -> str:
    """Return the text of the file with *labels*, good until that time in seconds since the epoch.

    A label of whose value nothing is left is left out; one that is empty stays.
    """
    values = {key: label_value(text) for key, text in labels.items()}
    lines = [f"{key}={values[key]}" for key in sorted(labels) if values[key] or not labels[key]]
    expiry = datetime.fromtimestamp(int(until), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return "".join(f"{line}\n" for line in (f"# +expiry-time={expiry}", *lines))
