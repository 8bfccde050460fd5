#!/usr/bin/env python3
"""Changes one thing in a run folder and writes every checksum anew, as somebody would who hides the change.

    change_run.py RUN [--raw] weight|moment|average STEP TENSOR ELEMENT BIT   one bit of a number
    change_run.py RUN [--raw] state STEP KEY VALUE       a member of state.json, such as scaler.scale
    change_run.py RUN [--raw] record STEP KEY VALUE      a value of metrics.jsonl; VALUE "" removes it
    change_run.py RUN [--raw] forget STEP                all records of a step
    change_run.py RUN [--raw] key KEY VALUE              a key of config.yaml, such as optimizer.lr
    change_run.py RUN [--raw] keys KEY VALUE             the same, in every checkpoint's run.json too

--raw leaves the checksums as they are. It prints the name of what it changed. Python's standard library is enough.
"""
import json
import os
import re
import struct
import sys

FILES = {"weight": "model.safetensors", "moment": "optimizer.safetensors", "average": "ema.safetensors"}


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def table_entry(i):
    for _ in range(8):
        i = (i >> 1) ^ (0x82F63B78 if i & 1 else 0)
    return i


TABLE = [table_entry(i) for i in range(256)]


def read(path):
    with open(path, "rb") as f:
        return f.read()


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


class Change:
    def __init__(self, run, raw):
        self.run, self.raw = run, raw

    def folder(self, step):
        return f"{self.run}/checkpoints/step-{int(step):08d}"

    def seal(self, path, text):
        """Numbers keep their text: only the crc32c of the sealed file is made anew."""
        at = text.rindex(b'"crc32c"')
        if not self.raw:
            mark = b'"%08x"' % crc32c(text[:text.rindex(b",", 0, at)])
            text = text[:at] + re.sub(rb'"[0-9a-f]{8}"', mark, text[at:], count=1)
        write(path, text)

    def name_state(self, step):
        """The manifest's mark of a state.json."""
        data = read(self.folder(step) + "/state.json")
        path = f"{self.run}/checkpoints/manifest.json"
        text = read(path).decode()
        name = f'"step-{int(step):08d}"'
        at = text.index('"name": ' + name)
        text = text[:at] + re.sub(r'"state_bytes": \d+', f'"state_bytes": {len(data)}', text[at:], count=1)
        text = text[:at] + re.sub(r'"state_crc32c": \d+', f'"state_crc32c": {crc32c(data)}', text[at:], count=1)
        self.seal(path, text.encode())

    def name_file(self, step, file):
        data = read(f"{self.folder(step)}/{file}")
        path = self.folder(step) + "/state.json"
        text = read(path).decode()
        at = text.rindex(f'"{file}"')
        text = text[:at] + re.sub(r'"crc32c": \d+', f'"crc32c": {crc32c(data)}', text[at:], count=1)
        self.seal(path, text.encode())
        self.name_state(step)

    def number(self, what, step, tensor, element, bit):
        file = FILES[what]
        path = f"{self.folder(step)}/{file}"
        data = bytearray(read(path))
        (n,) = struct.unpack("<Q", data[:8])
        header = json.loads(bytes(data[8:8 + n]))
        if tensor.isdigit():
            names = sorted(k for k in header if k != "__metadata__")
            tensor = names[int(tensor) % len(names)]
        begin, end = header[tensor]["data_offsets"]
        at = 8 + n + begin + 4 * (int(element) % ((end - begin) // 4)) + int(bit) // 8
        data[at] ^= 1 << int(bit) % 8
        write(path, bytes(data))
        if not self.raw:
            self.name_file(step, file)
        print(tensor)

    def state(self, step, key, value):
        path = self.folder(step) + "/state.json"
        text = read(path).decode()
        *parents, last = key.split(".")
        at = 0
        for parent in parents:
            at = text.index(f'"{parent}": {{', at)
        at = text.index(f'"{last}": ', at)
        text = text[:at] + re.sub(r'(": )[^,\n}]+', lambda m: m[1] + value, text[at:], count=1)
        self.seal(path, text.encode())
        if not self.raw:
            self.name_state(step)
        print(key)

    def records(self, edit):
        path = self.run + "/metrics.jsonl"
        old = read(path).decode("utf-8", "surrogateescape").splitlines(keepends=True)
        new = [edit(line) for line in old]
        lengths, marks = [0], [0]  # bytes before and after, at every line's end
        for a, b in zip(old, new):
            lengths.append(lengths[-1] + len(a.encode("utf-8", "surrogateescape")))
            marks.append(marks[-1] + len(b.encode("utf-8", "surrogateescape")))
        data = "".join(new).encode("utf-8", "surrogateescape")
        write(path, data)
        if self.raw:
            return
        path = f"{self.run}/checkpoints/manifest.json"
        text = read(path).decode()

        def mark(m):
            size = marks[lengths.index(int(m[1]))]
            return f'"metrics_bytes": {size},{m[2]}"metrics_crc32c": {crc32c(data[:size])}'

        self.seal(path, re.sub(r'"metrics_bytes": (\d+),(\s*)"metrics_crc32c": \d+', mark, text).encode())

    def record(self, step, key, value):
        def edit(line):
            if not line.startswith(f'{{"step": {step},') or f'"{key}": ' not in line:
                return line
            new = "" if value == "" else f'"{key}": {value}'
            line = re.sub(rf', "{re.escape(key)}": ("[^"]*"|[^,}}]+)', lambda m: ", " + new if new else "", line)
            return line

        self.records(edit)
        print(key)

    def forget(self, step):
        self.records(lambda line: "" if line.startswith(f'{{"step": {step},') else line)
        print(step)

    def set_key(self, text, key, value):
        group, name = key.split(".", 1)
        lines, inside = text.split("\n"), False
        for i, line in enumerate(lines):
            if not line.startswith(" "):
                inside = line.startswith(group + ":")
            elif inside and line.strip().startswith(name + ":"):
                lines[i] = f"  {name}: {value}"
        first = lines[0]
        if first.startswith("# crc32c") and not self.raw:
            body = "\n".join(lines[1:])
            lines[0] = re.sub(r"crc32c [0-9a-f]{8}", f"crc32c {crc32c(body.encode()):08x}", first)
        return "\n".join(lines)

    def key(self, key, value):
        path = self.run + "/config.yaml"
        write(path, self.set_key(read(path).decode(), key, value).encode())
        print(key)

    def keys(self, key, value):
        self.key(key, value)
        for name in sorted(os.listdir(self.run + "/checkpoints")):
            path = f"{self.run}/checkpoints/{name}/run.json"
            if os.path.exists(path):
                text = read(path).decode()
                old = json.loads(text)["configuration"]
                new = json.dumps(self.set_key(old, key, value), ensure_ascii=False)
                text = re.sub(r'("configuration": )"(?:[^"\\]|\\.)*"', lambda m: m[1] + new, text, count=1)
                self.seal(path, text.encode())


def main(words):
    raw = "--raw" in words
    words = [w for w in words if w != "--raw"]
    if len(words) < 3:
        sys.exit(__doc__)
    change, what, rest = Change(words[0], raw), words[1], words[2:]
    if what in FILES:
        change.number(what, *rest)
    else:
        {"state": change.state, "record": change.record, "forget": change.forget, "key": change.key,
         "keys": change.keys}[what](*rest)


main(sys.argv[1:])
