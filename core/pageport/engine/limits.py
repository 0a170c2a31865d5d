"""Bounds of what one request may ask for: of lists whose work grows with them.

OpenAI takes 4 stop strings; these are far above what people send.
"""

MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_BAD_WORDS = 1024
MAX_LOGPROBS = 20
