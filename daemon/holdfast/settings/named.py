"""Which of several named documents a node uses, by the rules of NVIDIA's config-manager."""

import os
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from holdfast.errors import SettingsError
from holdfast.names import CONFIG_DOCUMENT, CONFIG_LABEL
from holdfast.settings.sections import NamedSettings, Settings
from holdfast.settings.yamltext import read_text

_DEFAULT = "default"
"""The document that the fallback strategy `named` means."""


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A named document, as it was read."""

    name: str
    text: str


def chosen_document(named: NamedSettings, label: str) -> Document | None:
    """Return the document that the settings are read from; None: none is used.

    *label* is the value of the node's label, empty for none. Raise SettingsError where it, or no
    rule, names one that is there.
    """
    if not named.folder:
        return None
    folder = Path(named.folder)
    try:
        # What kubelet keeps beside a ConfigMap's files begins with two dots.
        with os.scandir(folder) as found:
            names = sorted(it.name for it in found if it.name[:2] != ".." and it.is_file())
    except OSError as error:
        raise SettingsError(f"cannot read the documents in {folder}: {error.strerror}") from error
    except ValueError as error:  # the path has a character that no path has
        raise SettingsError(f"cannot read the documents in {folder}: {error}") from error
    name = choice(named, label if named.labels else "", names)
    return Document(name=name, text=read_text(folder / name)) if name else None


def choice(named: NamedSettings, label: str, names: Collection[str]) -> str:
    """Return which of the documents *names* counts, empty for none; *label* is the node's value.

    The label comes first, then `default`, then the first fallback strategy that finds one.
    """
    for wanted, what in ((label, "the node's label"), (named.default, "named.default")):
        if wanted in names:
            return wanted
        if wanted:
            raise SettingsError(
                f"cannot use the document {wanted!r}, which {what} names: there is none in "
                f"{named.folder}; there are {', '.join(names) or 'none'}"
            )
    for strategy in named.fallback_strategies:
        if strategy == "named" and _DEFAULT in names:
            return _DEFAULT
        if strategy == "single" and len(names) == 1:
            return next(iter(names))
        if strategy == "empty":
            return ""
    raise SettingsError(
        f"cannot choose one of the documents in {named.folder} ({', '.join(names) or 'none'}): the "
        f"node has none of the labels {', '.join(named.labels) or '(none are read)'}; set one, or "
        "named.default, or add `empty` to named.fallbackStrategies"
    )


def follows_label(settings: Settings) -> bool:
    """Tell whether a label of the node names its document."""
    return bool(settings.named.folder and settings.named.labels)


def label_in(named: NamedSettings, labels: Mapping[str, str]) -> str:
    """Return the value of the first label that names a document, empty for none."""
    return next((labels[key] for key in named.labels if labels.get(key)), "")


def remembered_label(state_dir: str) -> str | None:
    """Return the label's last value that could be used, empty: there was none; None: unknown."""
    try:
        text = (Path(state_dir) / CONFIG_LABEL).read_text("utf-8")
    except (OSError, ValueError):  # the API server is asked instead
        return None
    return text.strip() if text else None  # of a power cut a file without a line may be left


def last_good_document(state_dir: str) -> Document | None:
    """Return the document that could be used last; None where there was none, or it is lost."""
    try:
        return msgspec.json.decode((Path(state_dir) / CONFIG_DOCUMENT).read_bytes(), type=Document)
    except (OSError, ValueError):  # msgspec's errors are ValueErrors
        return None


def remember(state_dir: str, label: str | None, document: Document | None) -> None:
    """Keep what is good: a start uses it where what there is by then cannot be used.

    *label* is the value of the node's label, which a start goes by also while the API server cannot
    be reached; None: unknown. Raise OSError where it cannot be written.
    """
    folder = Path(state_dir)
    if label is not None and label != remembered_label(state_dir):
        _write(folder / CONFIG_LABEL, f"{label}\n".encode())
    if document is None:
        (folder / CONFIG_DOCUMENT).unlink(missing_ok=True)
    elif document != last_good_document(state_dir):
        _write(folder / CONFIG_DOCUMENT, msgspec.json.encode(document))


def _write(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)  # it is the ledger's
    draft = file.with_suffix(".new")
    with draft.open("wb") as written:
        written.write(content)
        written.flush()
        os.fsync(written.fileno())  # before it takes the place of the former one
    draft.replace(file)
