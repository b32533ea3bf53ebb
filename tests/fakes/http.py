"""What a daemon serves over HTTP."""

import urllib.error
import urllib.request


def served(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    """Return the status and the text of an answer."""
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=20) as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def metrics(port: int) -> dict[str, float]:
    """Return the value of each metric by its name with its labels."""
    _, text = served(port, "/metrics")
    rows = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in rows}
