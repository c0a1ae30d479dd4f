"""llama.cpp's own HTTP server on loopback, from a package that runs on any 64-bit processor; a script that knows nothing of Tidegate.

python smollm2_server.py MODEL.gguf --port 8101 --alias NAME     ready in 1 s; until a signal ends it
"""

import argparse
import signal

import xllamacpp


def params_of(arguments: argparse.Namespace) -> xllamacpp.CommonParams:
    """The server's parameters, which llama-server takes by flags of the same names."""
    params = xllamacpp.CommonParams()
    params.model.path = arguments.model
    params.model_alias = {arguments.alias}
    params.hostnames = ["127.0.0.1"]
    params.port = arguments.port
    params.n_ctx = arguments.ctx_size
    params.n_parallel = arguments.parallel
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = arguments.threads
    params.n_threads_http = arguments.threads_http
    params.endpoint_metrics = True
    return params


def main() -> None:
    """Serve the model until a signal ends the process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="GGUF file")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--alias", required=True, help="what the model is called")
    parser.add_argument("--ctx-size", type=int, default=4096, help="tokens, of all slots together")
    parser.add_argument("--parallel", type=int, default=2, help="slots: requests at a time")
    parser.add_argument("--threads", type=int, default=1, help="that compute")
    # a connection occupies one thread while it is open, idle or not; llama-server's own default is low
    parser.add_argument("--threads-http", type=int, default=32)
    server = xllamacpp.Server(params_of(parser.parse_args()))
    print(f"listening on {server.listening_address}", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
