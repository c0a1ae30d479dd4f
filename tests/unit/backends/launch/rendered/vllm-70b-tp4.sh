#!/bin/sh
# vllm-70b-tp4: 70 billion parameters, pre-quantised FP8, over four GPUs of 80 GB, with EAGLE-3 drafts
# made by `tidegate engine render`; a starting point, not measured on your machine
set -eu
export PYTHONHASHSEED=0
export VLLM_NO_USAGE_STATS=1
export HF_HUB_OFFLINE=1
exec /opt/vllm serve /models/m \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name llama-3.3-70b \
  --enable-prefix-caching \
  --prefix-caching-hash-algo sha256_cbor \
  --kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657","topic":"kv@vllm-70b-tp4@llama-3.3-70b"}' \
  --enable-prompt-tokens-details \
  --scheduling-policy priority \
  --enable-server-load-tracking \
  --enable-request-id-headers \
  --shutdown-timeout 120 \
  --tensor-parallel-size 4 \
  --max-model-len 32768 \
  --max-num-seqs 256 \
  --max-num-batched-tokens 8192 \
  --max-num-queued-reqs 320 \
  --max-num-queued-tokens 120000 \
  --gpu-memory-utilization 0.92 \
  --speculative-config '{"method":"eagle3","model":"/models/eagle3-llama-3.3-70b","num_speculative_tokens":3}'
