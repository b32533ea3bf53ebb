"""Which of several named documents a node uses, by the rules of NVIDIA's config-manager."""

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from holdfast.errors import SettingsError
from holdfast.names import CONFIG_LABEL
from holdfast.settings.cluster import Named
from holdfast.settings.sections import Settings

_DEFAULT = "default"
"""The document that the fallback strategy `named` means."""


def chosen_document(named: Named, state_dir: str) -> Path | None:
    """Return the document that the settings are read from; None: none is used.

    Raise SettingsError where the node's label, or no rule, names one that is there.
    """
    if not named.folder:
        return None
    folder = Path(named.folder)
    try:
        # What kubelet keeps beside a ConfigMap's files begins with two dots.
        names = sorted(
            each.name for each in folder.iterdir() if each.name[:2] != ".." and each.is_file()
        )
    except OSError as error:
        raise SettingsError(f"cannot read the documents in {folder}: {error.strerror}") from error
    except ValueError as error:  # the path has a character that no path has
        raise SettingsError(f"cannot read the documents in {folder}: {error}") from error
    name = choice(named, remembered_label(state_dir) or "", names)
    return folder / name if name else None


def document_name(settings: Settings) -> str:
    """Return the name of the document that *settings* were read from, empty for none."""
    try:
        document = chosen_document(settings.named, settings.state_dir)
    except SettingsError:  # it is there no more; a reload says so
        return ""
    return document.name if document is not None else ""


def choice(named: Named, label: str, names: Collection[str]) -> str:
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


def label_in(named: Named, labels: Mapping[str, str]) -> str:
    """Return the value of the first label that names a document, empty for none."""
    return next((labels[key] for key in named.labels if labels.get(key)), "")


def remembered_label(state_dir: str) -> str | None:
    """Return the label's value as it was last read, empty: there was none; None: never read."""
    try:
        text = (Path(state_dir) / CONFIG_LABEL).read_text("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot read the node's label in {state_dir}: {error}") from error
    return text.strip() if text else None  # of a power cut a file without a line may be left


def remember_label(state_dir: str, value: str) -> None:
    """Keep the label's value: a start uses it, also while the API server cannot be reached.

    Raise OSError where it cannot be written.
    """
    file = Path(state_dir) / CONFIG_LABEL
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)  # it is the ledger's
    draft = file.with_suffix(".new")
    with draft.open("w", encoding="utf-8") as written:
        written.write(f"{value}\n")
        written.flush()
        os.fsync(written.fileno())  # before it takes the place of the former one
    draft.replace(file)
