#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Replays packets.json with a reader written from the description in wire/src/frame/mod.rs and wire/src/packet.rs alone: an example for other languages."""
import json
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
MASK = (1 << 64) - 1
CAUSES = set(range(1, 14)) | set(range(16, 29))
HEARTBEAT, CHANGE, MESSAGE, PIGGYBACK, GROUPS = 1, 2, 8, 1, 2
KINDS = {1, 2, 3, 4, 5, 6, 7, 8}


def siphash(key, message):
    k0, k1 = struct.unpack("<QQ", key)
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def rot(x, n):
        return (x << n | x >> (64 - n)) & MASK

    def rounds(n):
        for _ in range(n):
            v[0] = (v[0] + v[1]) & MASK; v[1] = rot(v[1], 13) ^ v[0]; v[0] = rot(v[0], 32)
            v[2] = (v[2] + v[3]) & MASK; v[3] = rot(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & MASK; v[3] = rot(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & MASK; v[1] = rot(v[1], 17) ^ v[2]; v[2] = rot(v[2], 32)

    padded = message + bytes(7 - len(message) % 8) + bytes([len(message) % 256])
    for (word,) in struct.iter_unpack("<Q", padded):
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def decode(packet, cluster, keys):
    """The fields, or the name of the refusal. The order of the checks is part of the format: counters are compared across hosts."""
    if len(packet) < 48:
        return "short"
    if len(packet) > 1472:
        return "oversize"
    magic, version, path_key, said, sender, incarnation, word, sent, period, table = struct.unpack(">HBBIIIQQII", packet[:40])
    if magic != 0xF1DE:
        return "magic"
    if version >> 4 != 2:
        return "version"
    if said != cluster:
        return "cluster"
    key = keys.get(path_key & 15)
    if key is None:
        return "key"
    body = packet[48:]
    if siphash(key, packet[:40] + body) != int.from_bytes(packet[40:48], "big"):
        return "mac"
    kind = word >> 56
    if kind not in KINDS:
        return "kind"
    if kind == MESSAGE and word >> 48 & 255 != GROUPS:
        return "kind"
    fields = {
        "kind": kind, "path": path_key >> 4, "key_id": path_key & 15, "cluster": said, "sender": sender, "incarnation": incarnation,
        "number": str(word & (1 << 48) - 1), "sent_ns": str(sent), "period_ns": period, "table_version": table, "more": version & 1 == 1,
    }
    if kind == HEARTBEAT and body:
        length = int.from_bytes(body[1:3], "big")
        if len(body) < 3 or len(body) < 3 + length:
            return "short"
        ours = body[0] == PIGGYBACK
        body, items = (body[3:3 + length], body[3 + length:]) if ours else (b"", body)
        if items:
            fields["items"] = items.hex()
    if kind == CHANGE:
        if not body or len(body) % 32:
            return "short"
        names = ("app", "notice", "cause", "grade", "flags", "code", "event_ns")
        for at in range(0, len(body), 32):
            origin, *values = struct.unpack_from(">IIQBBHiQ", body, at)
            notice = dict(zip(names, values))
            if origin != sender or notice["notice"] >> 32 or notice["cause"] not in CAUSES or notice["grade"] not in (1, 2):
                return "kind"
            if notice["app"] == 0 and len(body) > 32:
                return "kind"
            notice["event_ns"] = str(notice["event_ns"])
            fields.setdefault("notice", notice)
        body = body[32:]
    fields["body"] = body.hex()
    return fields


def name_id(name):
    value = 0x811C9DC5
    for byte in name.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value or 1


def bucket(ns):
    v = ns >> 8
    if v < 4:
        return v
    e = v.bit_length() - 1
    return min((e - 1) * 4 + (v >> (e - 2) & 3), 127)


def main():
    with open(os.path.join(HERE, "packets.json"), encoding="utf-8") as file:
        vectors = json.load(file)
    for s in vectors["siphash"]:
        assert f"{siphash(bytes.fromhex(s['key']), bytes.fromhex(s['message'])):016x}" == s["tag"], s
    for n in vectors["names"]:
        assert name_id(n["name"]) == n["id"], n
    for j in vectors["jitter"]:
        assert bucket(int(j["ns"])) == j["bucket"], j
    for p in vectors["packets"]:
        keys = {k["id"]: bytes.fromhex(k["key"]) for k in p["keys"]}
        got = decode(bytes.fromhex(p["hex"]), p["cluster"], keys)
        wanted = p.get("accept", p.get("refuse"))
        assert got == wanted, f"{p['name']}: {got} instead of {wanted}"
    print(f"{len(vectors['packets'])} packets, {len(vectors['siphash'])} tags, {len(vectors['names'])} names: as expected")


main()
