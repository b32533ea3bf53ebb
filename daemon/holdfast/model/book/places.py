"""Keeps in the book which PCI function each card is: another driver may give the function away."""

from collections.abc import Mapping

from holdfast.model.book.book import CARDS, Book, same_holder
from holdfast.model.book.draft import Draft
from holdfast.model.cards import card_of
from holdfast.model.devices import Inventory, pci_addresses, pci_key
from holdfast.model.ids import HardwareKey, PciAddress


def place(draft: Draft, found: Mapping[str, PciAddress]) -> None:
    """Note where drivers *found* cards.

    A card that no driver tells of any more stays where it was, over reboots too, until another card
    is there. A card and its function that two have already are kept apart only once one of them is
    over: each would wait for the other's end otherwise.
    """
    known = draft.book.kept.get(CARDS, {})
    if all(known.get(card) == at for card, at in found.items()):
        return
    taken = frozenset(found.values())
    stay = {card: at for card, at in known.items() if card not in found and at not in taken}
    new = {card: str(at) for card, at in found.items() if _can_be_one(draft, card, at)}
    draft.keep(CARDS, stay | new)


def on_vfio(
    keys: frozenset[HardwareKey], book: Book, inventory: Inventory
) -> tuple[PciAddress, ...]:
    """Return the PCI functions of the cards of *keys*, if all are on a VFIO driver; else none."""
    of = book.holdings.places.of
    cards = {card for key in keys if (card := card_of(key))}
    if not cards or not all(card in of for card in cards):
        return ()
    functions = pci_addresses(frozenset(of[card] for card in cards))
    vfio = frozenset(function for each in inventory.devices for function in each.functions)
    return functions if vfio.issuperset(functions) else ()


def _can_be_one(draft: Draft, card: str, address: PciAddress) -> bool:
    """Tell whether nobody has the function at *address* while another has *card*."""
    key = pci_key(address)
    locks = draft.locks.values()
    of_card = [lock for lock in locks if card in map(card_of, lock.keys)]
    return all(same_holder(each, lock) for lock in locks if key in lock.keys for each in of_card)
