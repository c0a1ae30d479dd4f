"""A launch configuration rendered for Kubernetes: a Deployment and a headless Service. Pure.

The Service is headless, because the gateway routes among pods itself and must see each of them. KV events hold prompts in clear: admit only
the gateway's pods to the two event ports (NetworkPolicy).
"""

from math import ceil
from typing import Any, Final

from backends.launch.render import GATEWAY_IMAGE, HEADER, digest_check, model_folders, ports, yaml_text
from backends.launch.resolve import Launch, is_loopback

LEAVING_S: Final = 5
"""Seconds between a pod's leaving the Service and SIGTERM: the gateway resolves every 5 s, and vLLM answers 500 to requests after
SIGTERM."""
PROBE_S: Final = 10
REVISION_LABEL: Final = "tidegate/revision"
"""As discovery reads it (`backends.discovery.kubernetes.watch`)."""
MAX_LABEL: Final = 63
"""Characters of a label's value."""
VOLUME: Final = "models"
"""The volume claim that holds the models; create it once per namespace."""


def kubernetes(launch: Launch) -> str:
    """Deployment and Service as YAML. Raises LaunchError for a relative model path."""
    return f"# {HEADER}\n" + yaml_text(_deployment(launch), _service(launch))


def _labels(launch: Launch) -> dict[str, str]:
    return {"app.kubernetes.io/name": launch.config.name, "app.kubernetes.io/component": "engine"}


def _pod_labels(launch: Launch) -> dict[str, str]:
    """With the revision, by which a pool may choose; not in the selector, which cannot be changed."""
    said = {REVISION_LABEL: launch.revision} if 0 < len(launch.revision) <= MAX_LABEL else {}
    return {**_labels(launch), **said}


def _deployment(launch: Launch) -> dict[str, Any]:
    pod = {
        "automountServiceAccountToken": False,
        # a Service called vllm would put VLLM_PORT=tcp://… into the environment, which vLLM reads as its own
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": LEAVING_S + launch.stop_s,
        **({"initContainers": [_digest_container(launch)]} if launch.digest else {}),
        "containers": [_container(launch)],
        "volumes": [
            {"name": "models", "persistentVolumeClaim": {"claimName": VOLUME, "readOnly": True}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{launch.config.hardware.shm_gib}Gi"}},
        ],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": launch.config.name, "labels": _labels(launch)},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": _labels(launch)},
            # GPUs for another pod are rarely free, so the old pod stops first
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "progressDeadlineSeconds": launch.config.ready_s + 600,
            "template": {"metadata": {"labels": _pod_labels(launch)}, "spec": pod},
        },
    }


def _container(launch: Launch) -> dict[str, Any]:
    hardware = launch.config.hardware
    program, *arguments = (_unexpanded(word) for word in launch.image_command)
    needed = {"cpu": str(hardware.cpus), "memory": f"{hardware.memory_gib}Gi"}
    gpus = {"nvidia.com/gpu": hardware.gpus} if hardware.gpus else {}
    health = {"httpGet": {"path": "/health", "port": "http"}}
    return {
        "name": "engine",
        "image": launch.config.image,
        "command": [program],
        "args": arguments,
        "env": [_variable(name, value) for name, value in launch.environment.items()],
        "ports": [{"name": name, "containerPort": port} for name, port in ports(launch).items()],
        "resources": {"requests": {**needed, **gpus}, "limits": {"memory": needed["memory"], **gpus}},
        "startupProbe": {**health, "periodSeconds": PROBE_S, "failureThreshold": ceil(launch.config.ready_s / PROBE_S)},
        "readinessProbe": {**health, "periodSeconds": 5, "timeoutSeconds": 2, "failureThreshold": 2},
        # slow, because a busy engine answers late and a restart costs minutes; the gateway itself checks whether tokens come
        "livenessProbe": {**health, "periodSeconds": 15, "timeoutSeconds": 10, "failureThreshold": 8},
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(LEAVING_S)]}}},
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": [
            *({"name": "models", "mountPath": folder, "readOnly": True} for folder in model_folders(launch)),
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }


def _digest_container(launch: Launch) -> dict[str, Any]:
    """Ends with an error, and so keeps the engine from starting, unless the model has the launch's digest."""
    program, *arguments = digest_check(launch)
    return {
        "name": "digest",
        "image": GATEWAY_IMAGE,
        "command": [program],
        "args": [_unexpanded(word) for word in arguments],
        "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True},
        "volumeMounts": [{"name": "models", "mountPath": folder, "readOnly": True} for folder in model_folders(launch)],
    }


def _service(launch: Launch) -> dict[str, Any]:
    opened = [{"name": name, "port": port, "targetPort": name} for name, port in ports(launch).items()]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": launch.config.name, "labels": _labels(launch)},
        "spec": {"clusterIP": "None", "selector": _labels(launch), "ports": opened},
    }


def _variable(name: str, value: str) -> dict[str, Any]:
    """One environment variable. The address at which other pods reach this one is the pod's own, unless one was set."""
    if name == "VLLM_NIXL_SIDE_CHANNEL_HOST" and is_loopback(value):
        return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    return {"name": name, "value": _unexpanded(value)}


def _unexpanded(text: str) -> str:
    """The text with `$(` escaped, because Kubernetes expands $(NAME) in commands and values."""
    return text.replace("$(", "$$(")
