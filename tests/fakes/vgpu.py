"""The PCI configuration space of a virtual GPU, made by the layout that the kernel's headers have."""


def config_space(*, record: bytes, signature: bytes = b"VF", listed: bool = True) -> bytes:
    """Return one with *record* in its vendor specific capability, behind another capability."""
    space = bytearray(256)
    space[0:4] = b"\xde\x10\xb8\x1e"
    space[0x06] = 0x10 if listed else 0
    space[0x34] = 0x68
    space[0x68:0x6B] = b"\x05\xd0\x81"  # message signalled interrupts
    body = signature + record
    space[0xD0 : 0xD3 + len(body)] = bytes((0x09, 0x00, 3 + len(body))) + body
    return bytes(space)
