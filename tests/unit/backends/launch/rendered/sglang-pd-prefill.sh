#!/bin/sh
# sglang-pd-prefill: Prefill half of a disaggregated pair: computes KV and hands it over (Mooncake)
# made by `tidegate engine render`; a starting point, not measured on your machine
set -eu
export HF_HUB_OFFLINE=1
exec /opt/python3 -m sglang.launch_server \
  --model-path /models/m \
  --host 0.0.0.0 \
  --port 30000 \
  --served-model-name llama-3.1-8b \
  --enable-metrics \
  --enable-cache-report \
  --page-size 64 \
  --kv-events-config '{"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657","topic":"kv@sglang-pd-prefill@llama-3.1-8b","bind":true}' \
  --load-publish-endpoint auto \
  --enable-priority-scheduling \
  --schedule-policy fcfs \
  --disaggregation-mode prefill \
  --disaggregation-transfer-backend mooncake \
  --disaggregation-bootstrap-port 8998 \
  --context-length 32768 \
  --mem-fraction-static 0.85 \
  --chunked-prefill-size 16384 \
  --max-running-requests 32 \
  --max-queued-requests 32
