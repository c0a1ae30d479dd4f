"""llama.cpp's server as an embedder, with the weights of the chat model: the mean of the last layer's vectors.

python -m tests.engines.llama_embedder MODEL.gguf --port 8101 --alias NAME     ready in 1 s; until a signal ends it
"""

import argparse
import signal

import xllamacpp

from gateway.cli.smollm2_server import params_of

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--alias", required=True)
    parser.set_defaults(ctx_size=4096, parallel=2, threads=1, threads_http=16)
    params = params_of(parser.parse_args())
    params.embedding = True
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    server = xllamacpp.Server(params)
    print(f"listening on {server.listening_address}", flush=True)
    signal.pause()
