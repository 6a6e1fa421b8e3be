"""Mutations of files: of their bytes, of the words of a text, and of the tree in a JSON file."""

import json
import re
import struct
from typing import Any

import numpy as np

_CODES = (*b"zzzz avc1 hev1 mp4v av01 vp09 FMP4 XVID H264 MJPG VP80".split(), bytes(4))
_NUMBERS = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFFE)
_DEEP = "[" * 100_000 + "]" * 100_000
_PLAIN = '-1 0 1e308 -1e308 1e999 nan inf null true [] {} "" 1_0 ٣ 0x10 ../.. / . ~ http://x/y concat:a|b ,, " \' ; 🎞'
_WORDS = (*_PLAIN.split(), "", " ", "9" * 25, "9" * 5000, *"\0\n\r\t\x85\u2028", "\x1b[31m", "a" * 300, "\udcff", _DEEP)
_WORDS += ("{split}", "&x", "*x", "!!python/object:os.system")
_VALUES = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 2**70, 1e308, -1e308, float("nan"), float("inf"), 0.5),
    *("", " ", "a", "\0", "\n", "../..", "/", "\ud800", "a" * 300, [], {}, [[]], [None], {"": None}, {"name": "x"}),
)
_TOKEN = re.compile(r'"[^"\n]*"|[\w.+-]+|[^\w\s]')


def mutate_bytes(random: np.random.Generator, content: bytes, others: list[bytes]) -> bytes:
    """Change a file in 1 to 4 places."""
    actual = bytearray(content)
    for _ in range(1 + min(3, int(random.geometric(0.5)) - 1)):
        at, length = int(random.integers(len(actual) + 1)), int(2 ** (random.random() * 10))
        head = int(random.integers(min(len(actual), 512) + 1))  # the structure of most files is there
        match int(random.integers(11)):
            case 0:  # flip bits
                for place in random.integers(len(actual), size=min(length, 64)) if actual else ():
                    actual[int(place)] ^= 1 << int(random.integers(8))
            case 1:
                actual[at : at + length] = random.bytes(length)
            case 2:
                actual[at : at + length] = bytes([int(random.integers(2)) * 255]) * length
            case 3:
                del actual[at:]
            case 4:
                del actual[at : at + length]
            case 5:  # duplicate
                actual[at:at] = actual[at : at + length]
            case 6:
                actual[at:at] = random.bytes(length)
            case 7:  # splice
                other = others[int(random.integers(len(others)))]
                actual[at:] = other[int(random.integers(len(other) + 1)) :]
            case 8:
                place = head if random.random() < 0.5 else at
                number = _NUMBERS[int(random.integers(len(_NUMBERS)))]
                actual[place : place + 4] = struct.pack("<I" if random.random() < 0.5 else ">I", number)
            case 9:  # another codec or box
                codes = [match.start() for match in re.finditer(rb"[A-Za-z0-9]{4}", bytes(actual[:4096]))]
                place = codes[int(random.integers(len(codes)))] if codes else head
                actual[place : place + 4] = _CODES[int(random.integers(len(_CODES)))]
            case 10:
                actual[head : head + min(length, 8)] = random.bytes(min(length, 8))
    return bytes(actual)


def mutate_text(random: np.random.Generator, content: bytes, others: list[bytes]) -> bytes:
    """Replace, delete or repeat 1 to 4 words of a text."""
    text = content.decode("utf-8", "surrogateescape")
    for _ in range(1 + min(3, int(random.geometric(0.5)) - 1)):
        tokens = [match.span() for match in _TOKEN.finditer(text[:20_000])]
        if not tokens:
            break
        start, end = tokens[int(random.integers(len(tokens)))]
        word = _WORDS[int(random.integers(len(_WORDS)))]
        word = word if len(text) < 20_000 or len(word) < 300 else "0"
        text = text[:start] + (word, text[start:end] * 2, "")[int(random.choice(3, p=(0.8, 0.1, 0.1)))] + text[end:]
    return text.encode("utf-8", "surrogateescape" if random.random() < 0.9 else "surrogatepass")


def mutate_tree(random: np.random.Generator, tree: Any) -> Any:
    """Replace, delete or add 1 to 3 values of plain data; what it is made of stays as it is."""
    for _ in range(int(random.integers(1, 4))):
        tree = _change(random, tree, int(random.integers(1, 8)))
    return tree


def _change(random: np.random.Generator, tree: Any, depth: int) -> Any:
    if not isinstance(tree, dict | list) or not tree or depth == 0:
        return _VALUES[int(random.integers(len(_VALUES)))]
    keys = [*tree] if isinstance(tree, dict) else [*range(len(tree))]
    key = keys[int(random.integers(len(keys)))]
    changed = {**tree} if isinstance(tree, dict) else [*tree]
    if random.random() < 0.1:
        del changed[key]
    elif random.random() < 0.1 and isinstance(changed, dict):
        changed[f"{key}x"] = changed.pop(key)
    elif random.random() < 0.1 and isinstance(changed, list):
        changed.append(changed[key])
    else:
        changed[key] = _change(random, changed[key], depth - 1)
    return changed


def mutate_json(random: np.random.Generator, content: bytes, others: list[bytes]) -> bytes:
    """Change the tree of a JSON file, or now and then its text."""
    if random.random() < 0.2:
        return mutate_text(random, content, others)
    tree = mutate_tree(random, json.loads(content))
    return json.dumps(tree).encode()


def mutate_safetensors(random: np.random.Generator, content: bytes, others: list[bytes]) -> bytes:
    """Change the header of a safetensors file, or the JSON in its metadata, or its bytes."""
    length = int.from_bytes(content[:8], "little")
    header, rest = json.loads(content[8 : 8 + length]), content[8 + length :]
    kind = random.random()
    metadata = header.get("__metadata__", {})
    if kind < 0.5 and "vidssl" in metadata:
        metadata["vidssl"] = json.dumps(mutate_tree(random, json.loads(metadata["vidssl"])))
    elif kind < 0.8:
        header = mutate_tree(random, header)
    else:
        return mutate_bytes(random, content, others)
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    return len(text).to_bytes(8, "little") + text + rest
