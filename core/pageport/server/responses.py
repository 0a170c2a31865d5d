"""``/v1/responses``: the chat endpoint's answers, told as items and events, and kept for later."""

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from pageport.errors import InvalidParameter, PageportError
from pageport.server.chat import Chat
from pageport.server.chat_prompt import render_prompt
from pageport.server.errors import UnknownResponse, no_response, quote
from pageport.server.openapi import STREAMED, documents_body
from pageport.server.protocol.chat import ChatMessage
from pageport.server.protocol.responses import (
    DeletedResponse,
    InputItemList,
    InputTokenCount,
    ResponseEvent,
    ResponseObject,
    ResponseRequest,
)
from pageport.server.response_input import chat_request, check, input_messages, own_field_names
from pageport.server.response_store import StoredResponse
from pageport.server.response_writer import ResponseWriter
from pageport.server.service import Service, service_of
from pageport.server.streaming import named_event, stream_events, until_disconnected

router = APIRouter()


@router.post(
    "/v1/responses", response_model=ResponseObject, responses=STREAMED, openapi_extra=documents_body(ResponseRequest)
)
async def create_response(request: Request) -> Response:
    """Answer a text or a conversation, or go on with one that is kept here."""
    answer = await service_of(request).build(request, ResponseRequest, Answer)
    if answer.body.stream:
        return await stream_events(request, answer.events())
    return _json(await until_disconnected(request.receive, answer.response()))


@router.get("/v1/responses/{response_id}", response_model=ResponseObject)
async def retrieve_response(request: Request, response_id: str) -> Response:
    """Return an answer that is kept here."""
    if request.query_params.get("stream", "false").lower() not in ("false", "0"):
        raise InvalidParameter("A kept answer is not streamed again. Leave out stream.", "stream")
    return _json(_stored(request, response_id).response)


@router.delete("/v1/responses/{response_id}")
async def delete_response(request: Request, response_id: str) -> DeletedResponse:
    """Forget an answer."""
    if not service_of(request).responses.delete(response_id):
        raise UnknownResponse(response_id)
    return DeletedResponse(id=response_id)


@router.post("/v1/responses/{response_id}/cancel", response_model=ResponseObject)
async def cancel_response(request: Request, response_id: str) -> Response:
    """Refuse: an answer that is kept here has ended."""
    _stored(request, response_id)
    raise InvalidParameter(
        "Only answers in the background can be cancelled, and this server makes none. To end one that is on its way, "
        "close the connection.",
        "response_id",
    )


@router.get("/v1/responses/{response_id}/input_items")
async def list_input_items(
    request: Request,
    response_id: str,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> InputItemList:
    """List the conversation that a kept answer ends, a page at a time."""
    items = _stored(request, response_id).input_items
    if order == "desc":
        items.reverse()
    if after is not None:
        position = next((position for position, item in enumerate(items) if item.id == after), None)
        if position is None:
            raise InvalidParameter(f"There is no item {quote(after)}. Leave out after to begin.", "after")
        items = items[position + 1 :]
    page = items[:limit]
    return InputItemList(
        data=page,
        first_id=page[0].id if page else None,
        last_id=page[-1].id if page else None,
        has_more=len(items) > limit,
    )


@router.post("/v1/responses/input_tokens", openapi_extra=documents_body(ResponseRequest))
async def count_input_tokens(request: Request) -> InputTokenCount:
    """Say how many tokens the input of a request would be, without answering it."""
    return await service_of(request).build(request, ResponseRequest, _count_input_tokens)


class Answer:
    """One request of this endpoint, checked.

    Raises:
        RequestError: it cannot be served as asked; names this endpoint's field.
    """

    def __init__(self, service: Service, body: ResponseRequest) -> None:
        self.body = body
        self._service = service
        self._conversation = _conversation(service, body)
        with own_field_names():
            self._chat = Chat(service, chat_request(body, self._conversation))
        self._writer = ResponseWriter(
            body, response_id=f"resp_{uuid.uuid4().hex}", model=service.model_name, created_at=int(time.time())
        )

    async def events(self) -> AsyncGenerator[str, None]:
        """Yield the events; what fails before the first token raises, so that the answer is a plain error then."""
        async with aclosing(self._run()) as groups:
            try:
                async for events in groups:
                    yield "".join(map(named_event, events))
            except PageportError as error:
                if self._writer.has_begun:
                    yield named_event(self._writer.fail(str(error)))
                raise

    async def response(self) -> ResponseObject:
        """Wait for the whole answer."""
        async with aclosing(self._run()) as groups:
            async for _ in groups:
                pass
        return self._writer.response

    async def _run(self) -> AsyncGenerator[list[ResponseEvent], None]:
        async with aclosing(self._chat.chunks()) as groups:
            async for chunks in groups:
                yield [event for chunk in chunks for event in self._writer.write(chunk)]
        end = self._writer.end()
        if self._writer.response.store:
            self._service.responses.add(
                StoredResponse(response=self._writer.response, conversation=[*self._conversation, self._writer.said])
            )
        yield end


def _count_input_tokens(service: Service, body: ResponseRequest) -> InputTokenCount:
    conversation = _conversation(service, body)
    with own_field_names():
        chat = chat_request(body, conversation)
        token_ids = service.engine.tokenizer.encode(render_prompt(service, chat), bool(chat.add_special_tokens))
    return InputTokenCount(input_tokens=len(token_ids))


def _conversation(service: Service, body: ResponseRequest) -> list[ChatMessage]:
    check(body)
    return [*_previous(service, body), *input_messages(body)]


def _stored(request: Request, response_id: str) -> StoredResponse:
    stored = service_of(request).responses.get(response_id)
    if stored is None:
        raise UnknownResponse(response_id)
    return stored


def _previous(service: Service, body: ResponseRequest) -> list[ChatMessage]:
    if body.previous_response_id is None:
        return []
    stored = service.responses.get(body.previous_response_id)
    if stored is None:
        raise InvalidParameter(
            f"{no_response(body.previous_response_id)} Send the conversation as input.", "previous_response_id"
        )
    return list(stored.conversation)


def _json(response: ResponseObject) -> Response:
    return Response(response.model_dump_json(), media_type="application/json")
