"""Writes pictures/{red,green,blue}/N.png, 20 each of 8 x 8 pixels in which that channel is bright."""
import os
import random
import struct
import zlib

random.seed(4)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


for channel, name in enumerate(("red", "green", "blue")):
    os.makedirs(f"pictures/{name}", exist_ok=True)
    for n in range(20):
        rows = b"".join(b"\0" + bytes(random.randrange(100) + 150 * (c == channel) for _ in range(8) for c in range(3)) for _ in range(8))
        with open(f"pictures/{name}/{n}.png", "wb") as file:
            file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) +
                       chunk(b"IEND", b""))
