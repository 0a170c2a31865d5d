"""Two hundred lines that tokenizers stumble over."""

_LINES = (
    "Hello world",
    "it's we'll I'M THEY'RE don't 'tis y'all'd've",
    "1 12 123 1234 12345 3.14159 1,000,000 0x1F 1e-9",
    "tab\tand\t\ttabs  and   several    spaces",
    "trailing spaces   ",
    "    def f(x: int) -> int:\n        return x ** 2  # squared",
    "for (int i = 0; i < n; ++i) { a[i] += b[i]; }",
    "line one\r\nline two\r\n\r\nline four\n\n\nend",
    "na\u00efve caf\u00e9 \u017elu\u0165ou\u010dk\u00fd k\u016f\u0148",
    "e\u0301 cafe\u0301 o\u0302\u0323 \u1100\u1161\u11a8",
    "\u65e5\u672c\u8a9e \u4e2d\u6587\u5b57\u7b26 \ud55c\uad6d\uc5b4 \u0440\u0443\u0441\u0441\u043a\u0438\u0439",
    "\U0001f525 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e8\U0001f1ff \u2764\ufe0f",
    "\u0661\u0662\u0663 \u00bd \u00b2 \u2167 \u0967\u0968",
    "https://example.org/a?b=c&d=%20#e user@host.tld",
    "(((...!!!???)))[[]]{{}}<<>>\u00ab\u00bb\u201c\u201d\u2026\u2014",
    "\u00a0\u2003\u3000wide\u200bspaces\ufeff",
    "\x00\x07\x1b[31mred\x1b[0m\x7f",
    "x\u00b7y = \u222b f d\u03bc \u2264 \u221e; $E=mc^2$ \\frac{a}{b}",
    "CamelCase snake_case kebab-case SCREAMING_CASE a1b2c3",
    "",
)
_SHAPES = ("{0}", " {0}", "   {0}", "{0}\r\n", "\t{0}", "{0} {0}", "{0}7", "7  {0}", "\n\n{0}", "'s{0}'LL")
LINES = tuple(shape.format(line) for line in _LINES for shape in _SHAPES)
