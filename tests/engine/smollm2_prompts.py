"""Twenty varied prompts of 1 to 700 tokens, made by cutting varied text to length."""

from pageport.text.tokenizer import Tokenizer

LENGTHS = (1, 2, 3, 5, 8, 13, 15, 16, 17, 31, 32, 33, 64, 100, 150, 200, 257, 400, 555, 700)

PIECES = (
    "The lighthouse keeper counted the ships each evening and wrote their names in a blue book. ",
    "def mean(values: list[float]) -> float:\n    return sum(values) / len(values)\n\n",
    "Once upon a time, in a village by the river, there lived a clockmaker who could not tell the time. ",
    "Q: What is the boiling point of water at sea level?\nA: It is 100 degrees Celsius.\n",
    "1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, ",
    "Dans la forêt, les oiseaux chantent dès l'aube; la rosée brille sur l'herbe. ",
    "SELECT name, COUNT(*) FROM orders WHERE total > 100 GROUP BY name ORDER BY name;\n",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen. ",
    "<ul>\n  <li>bread</li>\n  <li>butter</li>\n  <li>jam</li>\n</ul>\n",
    "“Are you sure?” she asked. “No,” he said, “but the train leaves at 9:45.” ",
)


def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    """Return token-id prompts of exactly ``LENGTHS``."""
    result = []
    for i, length in enumerate(LENGTHS):
        text = "".join(PIECES[(i + k * (1 + i % 3)) % len(PIECES)] for k in range(1 + length // 8))
        result.append(tokenizer.encode(text, add_special_tokens=False)[:length])
    assert [len(p) for p in result] == list(LENGTHS)
    return result
