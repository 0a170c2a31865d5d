"""``POST /tokenize`` and ``POST /detokenize``: what the model sees of a text, and back."""

from fastapi import APIRouter, Request

from pageport.errors import InvalidParameter
from pageport.server.chat_prompt import render_prompt
from pageport.server.openapi import documents_body
from pageport.server.protocol.chat import ChatRequest
from pageport.server.protocol.tokenize import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from pageport.server.service import Service, service_of

router = APIRouter()

# Fields that only say something about messages.
CHAT_FIELDS = (
    "add_generation_prompt",
    "continue_final_message",
    "documents",
    "tools",
    "chat_template",
    "chat_template_kwargs",
)


@router.post("/tokenize", openapi_extra=documents_body(TokenizeRequest))
async def create_tokens(request: Request) -> TokenizeResponse:
    """Return the tokens of a prompt, or of the prompt that messages become."""
    return await service_of(request).build(request, TokenizeRequest, _tokenize)


@router.post("/detokenize", openapi_extra=documents_body(DetokenizeRequest))
async def create_text(request: Request) -> DetokenizeResponse:
    """Return the text of tokens, special ones included."""
    return await service_of(request).build(request, DetokenizeRequest, _detokenize)


def _tokenize(service: Service, body: TokenizeRequest) -> TokenizeResponse:
    tokenizer = service.engine.tokenizer
    adds_special_tokens = body.messages is None if body.add_special_tokens is None else body.add_special_tokens
    token_ids = tokenizer.encode(_text(service, body), adds_special_tokens)
    return TokenizeResponse(
        count=len(token_ids),
        max_model_len=service.engine.info.max_model_len,
        tokens=token_ids,
        token_strs=list(map(tokenizer.token_string, token_ids)) if body.return_token_strs else None,
    )


def _text(service: Service, body: TokenizeRequest) -> str:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidParameter(
            f"The request has {'neither' if body.prompt is None else 'both'} prompt and messages. Give one of them.",
            "prompt",
        )
    given = {name: value for name in CHAT_FIELDS if (value := getattr(body, name)) is not None}
    if body.prompt is None:
        return render_prompt(service, ChatRequest(messages=body.messages or [], **given))
    for name in given:
        raise InvalidParameter(f"{name} only means something with messages. Leave it out.", name)
    return body.prompt


def _detokenize(service: Service, body: DetokenizeRequest) -> DetokenizeResponse:
    tokenizer = service.engine.tokenizer
    for position, token_id in enumerate(body.tokens):
        if not 0 <= token_id < tokenizer.vocab_size:
            raise InvalidParameter(
                f"tokens[{position}] is {token_id:.4g}; this model's ids go from 0 to {tokenizer.vocab_size - 1}.",
                "tokens",
            )
    return DetokenizeResponse(prompt=tokenizer.decode(body.tokens, skip_special_tokens=False))
