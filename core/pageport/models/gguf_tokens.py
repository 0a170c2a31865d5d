"""What GGUF metadata says of tokens, in llama.cpp's terms."""

# The keys of ids that end a generation: of a text, of a turn, of a message.
END_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
# Tokens that end a turn of a chat, also where the file's converter stored no id for it.
TURN_ENDS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>")
# Values of ``tokenizer.ggml.token_type`` for tokens that are more than text.
CONTROL, USER_DEFINED = 3, 4
