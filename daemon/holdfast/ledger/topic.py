"""What a part keeps in the ledger: values of its own type, as text to the book."""

from collections.abc import Mapping
from typing import Generic, TypeVar

import msgspec

from holdfast.errors import LedgerUnusableError
from holdfast.ledger.ledger import Ledger

T = TypeVar("T", bound=msgspec.Struct)

# The order of sets and keys must not decide whether a text has changed.
_ENCODER = msgspec.json.Encoder(order="deterministic")


class LedgerTopic(Generic[T]):
    """The values of one topic, by name. `value` reads them from the book as it was committed."""

    def __init__(self, ledger: Ledger, topic: str, kind: type[T]) -> None:
        """Keep values of *kind* under *topic*, which starts with the part's name and a slash."""
        self._ledger = ledger
        self._topic = topic
        self._decoder = msgspec.json.Decoder(kind)

    @property
    def value(self) -> dict[str, T]:
        """Return what is kept; raises LedgerUnusableError where it makes no sense."""
        texts = self._ledger.book.value.kept.get(self._topic, {})
        try:
            return {name: self._decoder.decode(text) for name, text in texts.items()}
        except msgspec.MsgspecError as error:
            raise LedgerUnusableError(
                f"cannot use the ledger: what it keeps of {self._topic} makes no sense: {error}. "
                "Move the ledger away to start with an empty one, which kubelet's checkpoint fills"
            ) from error

    async def keep(self, values: Mapping[str, T]) -> None:
        """Keep *values* and nothing else; raises LedgerError when the ledger cannot commit."""
        texts = {name: _ENCODER.encode(value).decode() for name, value in values.items()}
        # Also where just this is published: a former commit that took too long may still come.
        await self._ledger.apply(lambda draft: draft.keep(self._topic, texts))
