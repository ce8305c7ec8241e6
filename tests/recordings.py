"""Recordings as other programs write them, and this library's encoder does not: each a tone of `SECONDS`, as bytes."""

import io
import random
import struct

import numpy as np
import soundfile

from omnitts.ogg import with_serial

RATE = 24_000
SECONDS = 4.0
BLOCK = 576 / RATE  # of an MP3 at this rate; a decoder adds one or two at the start


def tone(seconds: float = SECONDS, rate: int = RATE, level: float = 0.3) -> np.ndarray:
    """Of changing loudness, so that variable rates vary."""
    time = np.arange(int(rate * seconds)) / rate
    noise = np.random.default_rng(0).standard_normal(len(time))
    return level * (0.8 * np.sin(2 * np.pi * 440 * time) + 0.1 * noise * (time > seconds / 2))


def encoded(format: str, subtype: str | None = None, wave: np.ndarray | None = None, **options) -> bytes:
    buffer = io.BytesIO()
    wave = tone() if wave is None else wave
    channels = 1 if wave.ndim == 1 else wave.shape[1]
    with soundfile.SoundFile(buffer, "w", RATE, channels, subtype, format=format, **options) as file:
        file.write(wave)
    return buffer.getvalue()


# ---- MPEG ----

_RATES = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)  # kbit/s of MPEG 2, layer III


def mpeg_frames(data: bytes) -> list[bytes]:
    """The frames of an MP3 at 24 kHz; the first is the encoder's, with Xing or Info in it."""
    frames = []
    while len(data) >= 4:
        assert data[:2] == b"\xff\xf3"
        size = 72 * _RATES[data[2] >> 4] * 1000 // RATE + (data[2] >> 1 & 1)
        frames.append(data[:size])
        data = data[size:]
    return frames


def mp3(*, variable: bool, wave: np.ndarray | None = None) -> list[bytes]:
    mode = "VARIABLE" if variable else "CONSTANT"
    return mpeg_frames(encoded("MP3", wave=wave, bitrate_mode=mode, compression_level=0.3))


def id3(size: int) -> bytes:
    """An ID3v2 tag, as a cover picture makes one."""
    return b"ID3\3\0\0" + bytes(size >> shift & 0x7F for shift in (21, 14, 7, 0)) + random.Random(0).randbytes(size)


def vbri(frames: list[bytes], count: int) -> bytes:
    """A first frame as Fraunhofer's encoder writes it, in front of others, which tells of `count`."""
    first = frames[1][:4] + bytes(32) + b"VBRI" + struct.pack(">HHHII", 1, 0, 75, sum(map(len, frames)), count)
    return first.ljust(len(frames[1]), b"\0")


def free_format(frames: list[bytes]) -> bytes:
    """Frames of one size, whose headers do not tell it."""
    return b"".join(frame[:2] + bytes([frame[2] & 0x0F]) + frame[3:] for frame in frames)


def layer_one(frames: int) -> bytes:
    """MPEG 1 layer I at 32 kHz, mono, 64 kbit/s: noise in the second of its 32 bands, 384 samples a frame."""
    made = []
    for seed in range(frames):
        bits = random.Random(seed)
        allocation = "".join(f"{3 if band == 1 else 0:04b}" for band in range(32))  # 4 bits a sample
        samples = "".join(f"{bits.randrange(15):04b}" for _ in range(12))
        body = f"{allocation}{10:06b}{samples}"
        data = int(body.ljust(-(-len(body) // 8) * 8, "0"), 2).to_bytes(-(-len(body) // 8), "big")
        made.append((b"\xff\xff\x28\xc0" + data).ljust(12 * 64_000 // 32_000 * 4, b"\0"))
    return b"".join(made)


def in_wav(data: bytes) -> bytes:
    """An MP3 as the samples of a WAV file, with a chunk of text behind it."""
    form = struct.pack("<HHIIHHHHIHHH", 0x55, 1, RATE, 10_000, 1, 0, 12, 1, 2, 240, 1, 1393)
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data
    chunks += bytes(len(data) % 2) + b"LIST" + struct.pack("<I", 12) + b"INFOISFT\0\0\0\0"
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


# ---- Written to a pipe ----


def streamed_flac() -> bytes:
    """Of no length (36 bits from the half of byte 21 on) and with no checksum (16 bytes from 26 on)."""
    data = bytearray(encoded("FLAC"))
    data[21] &= 0xF0
    data[22:42] = bytes(20)
    return bytes(data)


def with_size(format: str, name: bytes, offset: int, size: bytes, subtype: str | None = None) -> bytes:
    """A file whose size, `offset` bytes behind the first `name`, is another."""
    data = bytearray(encoded(format, subtype))
    start = data.index(name) + offset
    data[start : start + len(size)] = size
    return bytes(data)


def chained(subtype: str) -> bytes:
    """Two Ogg streams, one after the other, as internet radios send them."""
    data = encoded("OGG", subtype)
    return with_serial(data, 1) + with_serial(data, 2)
