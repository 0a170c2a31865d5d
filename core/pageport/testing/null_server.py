"""``python -m pageport.testing.null_server MODEL``: the real HTTP server before an engine that computes nothing.

For measuring what the API costs, and for trying clients at full speed. MODEL is where the tokenizer is.
"""

import argparse
import asyncio

from pageport.engine.log import open_log
from pageport.models.resolve import resolve_model
from pageport.server.app import create_app
from pageport.server.config import ServerConfig
from pageport.server.http_server import HttpServer
from pageport.server.listener import open_listener
from pageport.server.run import serve
from pageport.server.stop_request import StopRequest
from pageport.testing.null_engine import NullAsyncEngine, null_config
from pageport.text.tokenizer import load_tokenizer


async def run(model: str, *, port: int, latency_s: float, word: str, max_num_seqs: int) -> None:
    """Serve until a signal ends it; every token of every answer is the first of ``word``."""
    config = ServerConfig(port=port)
    open_log(config.log_format)
    token_id = load_tokenizer(resolve_model(model)).encode(word, add_special_tokens=False)[0]
    stop = StopRequest()
    stop.listen()
    with open_listener(config) as listener:
        engine = await NullAsyncEngine.start(
            null_config(model, token_id=token_id, latency_s=latency_s, max_num_seqs=max_num_seqs)
        )
        try:
            await serve(engine, HttpServer(create_app(engine, config), config, None), config, listener, stop)
        finally:
            await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--latency-ms", type=float, default=0.0, help="how long a step takes")
    parser.add_argument("--word", default=" word", help="what the model says")
    parser.add_argument("--max-num-seqs", type=int, default=256)
    arguments = parser.parse_args()
    asyncio.run(
        run(
            arguments.model,
            port=arguments.port,
            latency_s=arguments.latency_ms / 1e3,
            word=arguments.word,
            max_num_seqs=arguments.max_num_seqs,
        )
    )


if __name__ == "__main__":
    main()
