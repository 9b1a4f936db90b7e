"""Checks fingerprint.json with another language and another CBOR library: pip install cbor2; python check.py

Every digest is the SHA-256 of its bytes. Every byte string decodes, and encodes to the same bytes again. What the
vectors give as JSON text is encoded from scratch, by the rules in the documentation of idem_runtime::fingerprint.
Maps and sets whose keys are not text are decoded only: cbor2 sorts shorter keys first, and RFC 8949 does not.
"""

import hashlib
import json
import pathlib
from decimal import Decimal

import cbor2

MAXIMUM, MINIMUM = 2**128 - 1, -(2**127)


def number(text):
    """A number in its one form, by its exact decimal value."""
    sign, digits, exponent = Decimal(text).as_tuple()
    digits = "".join(map(str, digits)).lstrip("0")
    if not digits:
        return 0
    significant = digits.rstrip("0")
    exponent += len(digits) - len(significant)
    mantissa = int(significant) * (-1 if sign else 1)
    if 0 <= exponent < 40 and MINIMUM <= mantissa * 10**exponent <= MAXIMUM:
        return mantissa * 10**exponent
    if MINIMUM <= mantissa < 2**127:
        return cbor2.CBORTag(4, [exponent, mantissa])
    return cbor2.CBORTag(0x6965, [exponent, str(mantissa)])


def has_other_keys(value):
    if isinstance(value, dict):
        return any(not isinstance(key, str) for key in value) or any(map(has_other_keys, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(has_other_keys, value))
    return False


def main():
    vectors = json.loads(pathlib.Path(__file__).with_name("fingerprint.json").read_text())
    from_json = rewritten = 0
    for vector in vectors:
        name, data = vector["value"], bytes.fromhex(vector["canonical"])
        assert hashlib.sha256(data).hexdigest() == vector["digest"], name
        version, value = cbor2.loads(data)
        assert version == "idem/1", name
        if not has_other_keys(value):
            assert cbor2.dumps([version, value], canonical=True) == data, name
            rewritten += 1
        if "json" in vector:
            value = json.loads(vector["json"], parse_int=number, parse_float=number)
            assert cbor2.dumps(["idem/1", value], canonical=True) == data, name
            from_json += 1
    print(f"{len(vectors)} digests, {rewritten} rewritten, {from_json} from JSON text: all agree")


if __name__ == "__main__":
    main()
