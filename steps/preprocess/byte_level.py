"""Byte-level vocabularies: their alphabet, and texts on which libraries are known to differ."""

HARD_CASES = (
    "",
    " ",
    "\n\n\n  \t x",
    "don't  WE'LL it's",
    "naïve 東京 🙂🇩🇪 e\u0301 \u200b\ufeff",
    "a" * 300,
    " " * 300 + "x",
    "\r\n\x00\x7f",
    "1234567890 3.14e-10 0xFF",
    "if x:\n        return  [y]\n",
    "I'M he'Ll we'\u017f 'K\u212a \u2019s",
    "\u00a0x\u2003 \u3000y\u2028\u2029z\u0085 \x0b\x0c\x1c\x1d",
    "\u0663\u0664 \u2167 \u00bd \u00b2 \u4e00\u5341 x1y22z333 4444",
    "_a__b_ --c--d .e.. f,,g \u00a1\u00bf \u2026 \u20ac\u20ac",
    "\u0301a\u0301\u0301 \u0e33 \U0001f468\u200d\U0001f469\u200d\U0001f467 \ufe0f",
    "\r\r\n\n\r \n \r\n  \n\t\n x\n\n\n\n  y \n",
    "\ue000\ufffd\uffff\U0010ffff \U00020000\U000e0001",
    "".join(map(chr, range(1, 0x250))),
)
"""Texts on which regular expressions and byte-level alphabets are known to differ."""


def bytes_of_characters() -> dict[str, int]:
    """Byte-level BPE's alphabet (GPT-2): printable bytes map to themselves, others to characters from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    unprintable = [code for code in range(256) if code not in set(printable)]
    return {chr(code): code for code in printable} | {chr(256 + n): code for n, code in enumerate(unprintable)}
