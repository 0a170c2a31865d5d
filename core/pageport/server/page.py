"""``GET /``: a page to chat with the model and watch the engine; ``GET /engine``: what it shows."""

from importlib.resources import files

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from pageport.engine.messages import BlockState
from pageport.server.service import service_of

router = APIRouter()

# Cells of the block map; a cell of a larger cache stands for several blocks.
MOST_CELLS = 1536
# The page brings everything it needs, and needs nobody else.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
_PAGE = files("pageport.server").joinpath("page.html").read_text()


class BlockMap(BaseModel):
    """The KV cache's blocks of one group. ``cells`` has a digit a cell: 0 free, 1 cached, 2 used, 3 shared."""

    free: int
    cached: int
    used: int
    shared: int
    blocks_per_cell: int
    cells: str


class EngineState(BaseModel):
    """Gauges of this moment and counters since the engine's start."""

    model: str
    backend: str
    dtype: str
    max_model_len: int
    running: int
    waiting: int
    steps: int
    prompt_tokens: int
    generation_tokens: int
    prefix_hit_tokens: int
    preemptions: int
    blocks: list[BlockMap]


@router.get("/", include_in_schema=False)
async def page() -> Response:
    """Serve the page."""
    return Response(_PAGE, media_type="text/html", headers={"Content-Security-Policy": POLICY})


@router.get("/engine")
async def engine_state(request: Request) -> EngineState:
    """Show what the engine is doing."""
    engine = service_of(request).engine
    states = await engine.block_states()
    stats, info = engine.stats, engine.info
    return EngineState(
        model=info.model_name,
        backend=info.backend,
        dtype=info.dtype,
        max_model_len=info.max_model_len,
        running=stats.num_running,
        waiting=stats.num_waiting,
        steps=stats.steps_total,
        prompt_tokens=stats.prompt_tokens_total,
        generation_tokens=stats.generation_tokens_total,
        prefix_hit_tokens=stats.prefix_hit_tokens_total,
        preemptions=stats.preemptions_total,
        blocks=list(map(block_map, states)),
    )


def block_map(states: bytes) -> BlockMap:
    """Count the blocks of a group and draw them; a cell shows the state of its blocks that most depend on."""
    per_cell = max(1, -(-len(states) // MOST_CELLS))
    cells = [max(states[i : i + per_cell]) for i in range(0, len(states), per_cell)]
    return BlockMap(
        free=states.count(BlockState.FREE),
        cached=states.count(BlockState.CACHED),
        used=states.count(BlockState.USED),
        shared=states.count(BlockState.SHARED),
        blocks_per_cell=per_cell,
        cells="".join(map(str, cells)),
    )
