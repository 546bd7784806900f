#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Replays packets.json with a reader written from the description in wire/src/packet.rs alone: an example for other languages."""
import json
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
MASK = (1 << 64) - 1
CAUSES = set(range(1, 11)) | set(range(16, 29))
BODY_MAX = 1420


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
    if len(packet) < 44:
        return "short"
    magic, kinds, path_key, said, sender, incarnation, number, sent, period = struct.unpack(">HBBIIIQQI", packet[:36])
    if magic != 0xF1DE:
        return "magic"
    if kinds >> 4 != 1:
        return "version"
    kind = kinds & 7
    if not 1 <= kind <= 7:
        return "kind"
    if said != cluster:
        return "cluster"
    tag_at = 60 if kind in (2, 3) else 36
    if len(packet) < tag_at + 8:
        return "short"
    if len(packet) > tag_at + 16 + BODY_MAX:
        return "oversize"
    key = keys.get(path_key & 15)
    if key is None:
        return "key"
    tag = packet[tag_at:tag_at + 8]
    if siphash(key, packet[:tag_at]) != int.from_bytes(tag, "big"):
        return "mac"
    fields = {
        "kind": kind, "path": path_key >> 4, "key_id": path_key & 15, "cluster": said, "sender": sender, "incarnation": incarnation,
        "number": str(number), "sent_ns": str(sent), "period_ns": period,
    }
    if tag_at == 60:
        names = ("notice", "app", "cause", "grade", "flags", "code", "event_ns")
        notice = dict(zip(names, struct.unpack(">IIBBHiQ", packet[36:60])))
        if notice["cause"] not in CAUSES or notice["grade"] not in (1, 2):
            return "kind"
        notice["event_ns"] = str(notice["event_ns"])
        fields["notice"] = notice
    rest = packet[tag_at + 8:]
    if not kinds & 8:
        if rest:
            return "oversize"
    elif len(rest) <= 8:
        return "short"
    elif siphash(key, tag + rest[8:]) != int.from_bytes(rest[:8], "big"):
        return "body-mac"
    fields["body"] = rest[8:].hex()
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
