"""Part: tiny LLaMA, GPT-2, Gemma and Qwen say what transformers says, greedily, in float32, some requests at once."""

from typing import Any

import torch
from engine_run import EngineRun, Job
from part import Part
from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, LlamaConfig, Qwen2Config, Qwen3Config

VOCABULARY = 512
NUM_TOKENS = 24
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}
CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**COMMON),
    "gpt2": GPT2Config(vocab_size=VOCABULARY, n_embd=128, n_layer=2, n_head=2, n_positions=512, initializer_range=0.2),
    "gemma2": Gemma2Config(**COMMON, sliding_window=32, query_pre_attn_scalar=64),
    "qwen2": Qwen2Config(**COMMON),
    "qwen3": Qwen3Config(**COMMON),
}
PROMPT_LENGTHS = (1, 15, 16, 17, 40, 90)


def main() -> None:
    with Part("check_models") as part:
        for name, config in CONFIGS.items():
            try:
                part.add(name, compare(part, config))
            except Exception as error:  # another model may still be right
                part.add(name, f"failed: {type(error).__name__}: {error}")


def compare(part: Part, config: Any) -> dict[str, Any]:
    """Generate with both and count the requests whose tokens are all the same."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(part.torch_device).eval()
    prompts = [torch.randint(VOCABULARY, (length,)).tolist() for length in PROMPT_LENGTHS]
    expected = [continuation(model, prompt) for prompt in prompts]
    settings = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 8, "num_kv_blocks": 128, "strict_ops": True}
    with EngineRun(model, part.backend, **settings) as run:
        said = run.run([Job(prompt, NUM_TOKENS) for prompt in prompts])
    agreeing = [shared_length(*pair) for pair in zip(said, expected, strict=True)]
    return {"requests": len(prompts), "equal": agreeing.count(NUM_TOKENS), "shortest agreement": min(agreeing)}


@torch.inference_mode()
def continuation(model: Any, prompt: list[int]) -> list[int]:
    """Return the likeliest tokens, each computed anew from all before it."""
    tokens = list(prompt)
    for _ in range(NUM_TOKENS):
        logits = model(torch.tensor([tokens], device=model.device), use_cache=False).logits
        tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def shared_length(some: list[int], others: list[int]) -> int:
    """Return how many tokens both begin with."""
    return next((place for place, (a, b) in enumerate(zip(some, others, strict=True)) if a != b), len(some))


if __name__ == "__main__":
    main()
