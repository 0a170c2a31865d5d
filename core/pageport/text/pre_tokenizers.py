"""How byte-level BPE vocabularies cut text before merging, by the tag that GGUF files name it with.

Tags and patterns are facts of the models' own ``tokenizer.json`` files; the tags are llama.cpp's.
"""

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN_SPLIT = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT4O_SPLIT = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SINGLE_NUMERALS = r"\p{N}"
# llama.cpp's own, for files of before the tag existed.
_DEFAULT_SPLITS = (r"[\p{P}\$\+<=>\^~\|]+", GPT2_SPLIT, r"\p{N}+", r"[0-9][0-9][0-9]")


@dataclass(frozen=True, kw_only=True)
class Splitting:
    """Patterns, each applied to the pieces the one before left."""

    splits: tuple[str, ...]
    composes: bool = False  # the text is brought to normal form C first
    ignores_merges: bool = False  # a piece that is in the vocabulary is one token, merges or not
    adds_bos: bool = False  # where the file does not say

    def build(self) -> pre_tokenizers.PreTokenizer:
        """Return the pre-tokenizer, which also rewrites bytes to the byte alphabet."""
        steps: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(split), behavior="isolated") for split in self.splits
        ]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        return pre_tokenizers.Sequence(steps)


def splitting(tag: str) -> Splitting | None:
    """Return what ``tokenizer.ggml.pre`` asks for; None for an unknown tag."""
    return _by_tag().get(tag)


def known_tags() -> list[str]:
    return sorted(_by_tag())


def _by_tag() -> dict[str, Splitting]:
    llama3 = Splitting(splits=(LLAMA3_SPLIT,), ignores_merges=True, adds_bos=True)
    numerals_apart = Splitting(splits=(SINGLE_NUMERALS, GPT2_SPLIT))
    gpt2 = Splitting(splits=(GPT2_SPLIT,))
    qwen2 = Splitting(splits=(QWEN2_SPLIT,), composes=True)
    gpt4o = Splitting(splits=(GPT4O_SPLIT,))
    return {
        "default": Splitting(splits=_DEFAULT_SPLITS),
        **dict.fromkeys(("gpt-2", "gpt2", "phi-2"), gpt2),
        **dict.fromkeys(("mpt", "olmo"), Splitting(splits=(GPT2_SPLIT,), composes=True)),
        **dict.fromkeys(("smollm", "starcoder", "refact"), numerals_apart),
        "command-r": Splitting(splits=(SINGLE_NUMERALS, GPT2_SPLIT), composes=True),
        **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3"), llama3),
        **dict.fromkeys(("dbrx", "smaug-bpe"), Splitting(splits=(LLAMA3_SPLIT,))),
        "qwen2": qwen2,
        "deepseek-r1-qwen": Splitting(splits=(QWEN2_SPLIT,)),
        "tekken": Splitting(splits=(TEKKEN_SPLIT,), ignores_merges=True, adds_bos=True),
        **dict.fromkeys(("gpt-4o", "llama4"), gpt4o),
    }
