"""Ogg streams with a serial number of our choice."""

import zlib

_SERIAL = slice(14, 18)
_CRC = slice(22, 26)
_SEGMENT_COUNT = 26
_HEADER_SIZE = 27

_REVERSED_BITS = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def with_serial(stream: bytes, serial: int) -> bytes:
    """Give every page of an Ogg file with one logical stream the serial number `serial` (0 .. 2**32-1).

    Encoders draw a random one, and so the same samples never give the same file twice. For the layout of a
    page see RFC 3533, section 6.
    """
    out = bytearray(stream)
    start = 0
    while start < len(out):
        segment_sizes = start + _HEADER_SIZE
        body = segment_sizes + out[start + _SEGMENT_COUNT]
        end = body + sum(out[segment_sizes:body])
        page = out[start:end]
        page[_SERIAL] = serial.to_bytes(4, "little")
        page[_CRC] = bytes(4)
        page[_CRC] = _page_crc(page).to_bytes(4, "little")
        out[start:end] = page
        start = end
    return bytes(out)


def _page_crc(page: bytes | bytearray) -> int:
    """CRC-32 with Ogg's conventions: most significant bit first, starting at 0, not inverted at the end.

    zlib's has the same polynomial and the opposite of all three. It gives this one when the bits of each byte
    go in reversed, the start value undoes its inversion, and the result is inverted back and reversed.
    """
    crc = zlib.crc32(page.translate(_REVERSED_BITS), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{crc:032b}"[::-1], 2)
