"""``ReasoningFormat``: how a family of models marks what it writes for itself."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ReasoningFormat:
    """Reasoning begins an output and stands between two markers; templates may write the first one themselves."""

    name: str
    begin_marker: str
    end_marker: str

    def is_used_by(self, template: str) -> bool:
        """Whether a chat template of this text knows reasoning of this format."""
        return self.begin_marker in template or self.end_marker in template

    def is_open_after(self, prompt: str, continued: str = "") -> bool:
        """Whether an output that follows ``prompt`` begins within reasoning.

        Args:
            prompt: the rendered conversation.
            continued: text of the answer that the prompt ends with.
        """
        if prompt.rstrip().endswith(self.begin_marker):
            return True
        return continued.rfind(self.begin_marker) > continued.rfind(self.end_marker)


# DeepSeek R1, Qwen 3, SmolLM3 and many more.
THINK = ReasoningFormat(name="think", begin_marker="<think>", end_marker="</think>")
REASONING_FORMATS = {known.name: known for known in (THINK,)}


def reasoning_format_of(template: str) -> ReasoningFormat | None:
    """Find the format that a chat template knows; None: none that is known."""
    return next((known for known in REASONING_FORMATS.values() if known.is_used_by(template)), None)
