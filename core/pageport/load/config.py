"""``LoadConfig``: what ``pageport bench serve`` sends, to whom, and how fast."""

import math
from dataclasses import dataclass
from typing import Literal

from pageport.config import setting
from pageport.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class TargetConfig:
    """Whom to ask."""

    url: str = setting("http://127.0.0.1:8000", "The server, without /v1.", "--base-url")
    model: str | None = setting(None, "Model to ask for; default: the first of /v1/models.")
    endpoint: Literal["auto", "completions", "chat"] = setting(
        "auto", "auto: chat for a data set of conversations, completions else."
    )
    api_key: str | None = setting(None, "Sent as a bearer token.")
    extra_body: str | None = setting(None, "JSON object merged into each request.")
    ignore_eos: bool = setting(
        False, "Ask for exactly the wanted number of tokens (min_tokens, ignore_eos); servers other than ours and "
        "vLLM may refuse that."
    )  # fmt: skip
    temperature: float = setting(0.0, "0: greedy.")


@dataclass(frozen=True, kw_only=True)
class DatasetConfig:
    """What to ask."""

    dataset: Literal["words", "tokens", "jsonl", "sharegpt"] = setting(
        "words",
        "words: random words; tokens: random token ids (completions only); jsonl: one object a line with prompt or "
        "messages, and perhaps max_tokens; sharegpt: a JSON list of conversations.",
        "--dataset-name",
    )
    dataset_path: str | None = setting(None, "The file of jsonl and sharegpt.")
    num_prompts: int = setting(100, "How many requests are sent and measured.")
    input_len: int = setting(128, "Words or tokens of a random prompt, besides the prefix.", "--random-input-len")
    output_len: int = setting(
        64, "Tokens to ask for, where the data set does not say.", "--random-output-len", "--max-tokens"
    )
    range_ratio: float = setting(
        0.0, "Random lengths are drawn from ± this share of the above.", "--random-range-ratio"
    )
    prefix_len: int = setting(0, "Words or tokens that all random prompts begin with.", "--random-prefix-len")
    vocab_size: int = setting(32000, "Token ids of --dataset tokens are drawn below this.")
    seed: int = setting(0, "Of lengths, prompts and arrivals.")

    def __post_init__(self) -> None:
        for name in ("num_prompts", "input_len", "output_len"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"--{name.replace('_', '-')} is {getattr(self, name)}; use at least 1.")
        if not 0 <= self.range_ratio < 1:
            raise ConfigurationError(f"--range-ratio is {self.range_ratio}; use at least 0 and less than 1.")
        if self.prefix_len < 0:
            raise ConfigurationError(f"--prefix-len is {self.prefix_len}; use 0 for none.")
        if self.vocab_size < 200:
            raise ConfigurationError(f"--vocab-size is {self.vocab_size}; use the model's, at least 200.")
        reads_file = self.dataset in ("jsonl", "sharegpt")
        if reads_file != (self.dataset_path is not None):
            needed = (
                f"--dataset {self.dataset} needs" if reads_file else f"--dataset {self.dataset} reads no file: drop"
            )
            raise ConfigurationError(f"{needed} --dataset-path.")


@dataclass(frozen=True, kw_only=True)
class LoadConfig:
    """How fast to ask, and what counts as good."""

    request_rate: float = setting(math.inf, "Requests a second; inf: all at once, as far as --concurrency allows.")
    burstiness: float = setting(
        1.0, "1: arrivals of a Poisson process; below, in bursts; above, evener. Without meaning at the rate inf."
    )
    concurrency: int | None = setting(
        None, "Most requests at once; further ones wait here, which is reported. Default: no bound.",
        "--max-concurrency",
    )  # fmt: skip
    num_warmups: int = setting(1, "Requests that are sent before, one by one, and not measured.")
    timeout: float = setting(600.0, "Seconds after which a request counts as failed.")
    goodput: tuple[str, ...] = setting(
        (), "What a good request keeps to, in ms: ttft:500, tpot:50, itl:100 or e2el:2000; may be repeated."
    )
    output: str | None = setting(None, "Write the results to this JSON file.")
    plot: str | None = setting(None, "Draw the latencies into this PNG file; needs matplotlib.")
    progress: bool = setting(True, "Show a bar while it runs.")

    def __post_init__(self) -> None:
        if not self.request_rate > 0:
            raise ConfigurationError(f"--request-rate is {self.request_rate}; use more than 0, or inf.")
        if not 0 < self.burstiness < math.inf:
            raise ConfigurationError(f"--burstiness is {self.burstiness}; use more than 0.")
        if self.concurrency is not None and self.concurrency < 1:
            raise ConfigurationError(f"--concurrency is {self.concurrency}; use at least 1.")
        if self.num_warmups < 0:
            raise ConfigurationError(f"--num-warmups is {self.num_warmups}; use 0 for none.")
        if not self.timeout > 0:
            raise ConfigurationError(f"--timeout is {self.timeout}; use more than 0.")
